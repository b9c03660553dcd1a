// See peers.py. Its arguments are the members.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

func main() {
	var pools []redis.Pool
	for _, host := range os.Args[1:] {
		pools = append(pools, goredis.NewPool(goredislib.NewClient(&goredislib.Options{Addr: host})))
	}
	rs := redsync.New(pools...)
	fmt.Printf("ready\t%s\tWithFailFast, go-redis %s; else its defaults (expiry 8 s, tries again "+
		"after 50 to 250 ms)\n", version("redsync/v4"), version("go-redis/v9"))
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		words := strings.Split(in.Text(), "\t")
		milliseconds, err := strconv.Atoi(words[1])
		if err != nil {
			panic(err)
		}
		fmt.Println(turn(rs, time.Duration(milliseconds)*time.Millisecond, words[2]))
	}
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		if strings.HasSuffix(dep.Path, module) {
			return strings.TrimPrefix(dep.Version, "v")
		}
	}
	return "?"
}

func turn(rs *redsync.Redsync, window time.Duration, name string) string {
	mutex := rs.NewMutex(name, redsync.WithFailFast(true))
	var answer strings.Builder
	end := time.Now().Add(window)
	for asked := time.Now(); asked.Before(end); asked = time.Now() {
		// It gives up after 32 tries.
		for mutex.Lock() != nil {
		}
		had := time.Now()
		if done, err := mutex.Unlock(); !done {
			return "error " + strings.Join(strings.Fields(fmt.Sprint(err)), " ")
		}
		fmt.Fprintf(&answer, "%d/%d ", had.Sub(asked), time.Since(asked))
	}
	return answer.String()
}
