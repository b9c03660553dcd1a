// See peers.py. Its argument is the server.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

const (
	ttl = 20 * time.Second
	// The least that its documentation advises.
	pause = 16 * time.Millisecond
)

func main() {
	locker := redislock.New(redis.NewClient(&redis.Options{Addr: os.Args[1]}))
	fmt.Printf("ready\t%s\tgo-redis %s, ttl %s, LinearBackoff of %s\n", version("bsm/redislock"),
		version("go-redis/v9"), ttl, pause)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		words := strings.Split(in.Text(), "\t")
		milliseconds, err := strconv.Atoi(words[1])
		if err != nil {
			panic(err)
		}
		fmt.Println(turns(locker, time.Duration(milliseconds)*time.Millisecond, words[2:]))
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

// turns is what callers, one for each name, had together.
func turns(locker *redislock.Client, window time.Duration, names []string) string {
	answers := make([]string, len(names))
	var callers sync.WaitGroup
	for i, name := range names {
		callers.Add(1)
		go func(i int, name string) {
			defer callers.Done()
			answers[i] = turn(locker, window, name)
		}(i, name)
	}
	callers.Wait()
	for _, answer := range answers {
		if strings.HasPrefix(answer, "error") {
			return answer
		}
	}
	return strings.Join(answers, "")
}

type times struct{ waited, whole time.Duration }

func turn(locker *redislock.Client, window time.Duration, name string) string {
	ctx := context.Background()
	options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(pause)}
	var had []times
	end := time.Now().Add(window)
	for asked := time.Now(); asked.Before(end); asked = time.Now() {
		lock, err := locker.Obtain(ctx, name, ttl, options)
		if err != nil {
			return "error " + strings.Join(strings.Fields(err.Error()), " ")
		}
		waited := time.Since(asked)
		if err := lock.Release(ctx); err != nil {
			return "error " + strings.Join(strings.Fields(err.Error()), " ")
		}
		had = append(had, times{waited, time.Since(asked)})
	}
	var answer strings.Builder
	for _, one := range had {
		fmt.Fprintf(&answer, "%d/%d ", one.waited, one.whole)
	}
	return answer.String()
}
