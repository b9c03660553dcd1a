// A redsync client that does what it is told, a line at a time: VERB NAME …; answers each line with
// the time in ms. Its arguments are the ports of the members.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

// How often a lock that somebody has is asked for, and how often at most.
const (
	retryDelay = 20 * time.Millisecond
	tries      = 750
)

type peer struct {
	rs   *redsync.Redsync
	held map[string]*redsync.Mutex
}

func main() {
	var pools []redis.Pool
	for _, port := range os.Args[1:] {
		client := goredislib.NewClient(&goredislib.Options{Addr: "127.0.0.1:" + port})
		pools = append(pools, goredis.NewPool(client))
	}
	p := peer{rs: redsync.New(pools...), held: map[string]*redsync.Mutex{}}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		answer, err := p.act(strings.Split(in.Text(), "\t"))
		if err != nil {
			answer = "error " + strings.Join(strings.Fields(err.Error()), " ")
		}
		fmt.Printf("%s\t%d\n", answer, time.Now().UnixMilli())
	}
}

func (p *peer) act(words []string) (string, error) {
	name := words[1]
	switch words[0] {
	case "try", "keep", "lock":
		ttl, err := strconv.Atoi(words[2])
		if err != nil {
			return "", err
		}
		return strconv.FormatBool(p.lock(name, ttl, words[0] != "lock") == nil), nil
	case "unlock":
		done, err := p.held[name].Unlock()
		return strconv.FormatBool(done && err == nil), nil
	case "extend":
		done, err := p.held[name].Extend()
		return strconv.FormatBool(done && err == nil), nil
	case "sell":
		return p.sell(name, words[2], words[3])
	}
	return "", fmt.Errorf("what? %q", words)
}

func (p *peer) lock(name string, ttl int, once bool) error {
	m := p.rs.NewMutex(name, redsync.WithExpiry(time.Duration(ttl)*time.Millisecond),
		redsync.WithRetryDelay(retryDelay), redsync.WithTries(tries))
	take := m.Lock
	if once {
		take = m.TryLock
	}
	if err := take(); err != nil {
		return err
	}
	p.held[name] = m
	return nil
}

// sell takes one from the stock in the file as often as there are orders and the stock lasts: a
// read, a pause, and a write, which only the lock keeps together.
func (p *peer) sell(name, file, orders string) (string, error) {
	count, err := strconv.Atoi(orders)
	if err != nil {
		return "", err
	}
	sold := 0
	for ; count > 0; count-- {
		if err := p.lock(name, 6000, false); err != nil {
			return "", err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		stock, err := strconv.Atoi(string(text))
		if err != nil {
			return "", err
		}
		time.Sleep(2 * time.Millisecond)
		if stock > 0 {
			if err := os.WriteFile(file, []byte(strconv.Itoa(stock-1)), 0o600); err != nil {
				return "", err
			}
			sold++
		}
		if done, err := p.held[name].Unlock(); !done {
			return "", fmt.Errorf("lost while it sold: %v", err)
		}
	}
	return strconv.Itoa(sold), nil
}
