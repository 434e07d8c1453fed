// Command load sends admission reviews over keep-alive TLS connections, each as fast as its answers come, and prints
// what came of it as JSON. It encodes nothing while it measures: on a small machine the server needs the processor.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

type options struct {
	address, path, bodies, authority, name, expect string
	connections                                    int
	warmUp, duration                               time.Duration
}

type report struct {
	Reviews int     `json:"reviews"`
	Seconds float64 `json:"seconds"`
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	Slowest float64 `json:"slowest_ms"`
	Failed  int     `json:"failed"`
	Failure string  `json:"failure,omitempty"`
}

// client is one connection.
type client struct {
	connection net.Conn
	reader     *bufio.Reader
	latencies  []time.Duration
	failed     int
	failure    error
}

func main() {
	var given options
	flag.StringVar(&given.address, "address", "127.0.0.1:9443", "the server")
	flag.StringVar(&given.path, "path", "/mutate", "where it takes reviews")
	flag.StringVar(&given.bodies, "bodies", "", "file with one review per line, sent in turn")
	flag.StringVar(&given.authority, "authority", "", "file with the certificate that vouches for the server")
	flag.StringVar(&given.name, "name", "localhost", "the name in the server's certificate")
	flag.StringVar(&given.expect, "expect", "\"allowed\":true", "what every answer must contain")
	flag.IntVar(&given.connections, "connections", 25, "how many connections")
	flag.DurationVar(&given.warmUp, "warm-up", time.Second, "not counted")
	flag.DurationVar(&given.duration, "duration", 3*time.Second, "counted")
	flag.Parse()
	found, err := run(given)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		os.Exit(1)
	}
}

func run(given options) (*report, error) {
	requests, err := prepare(given)
	if err != nil {
		return nil, err
	}
	clients, err := connect(given)
	if err != nil {
		return nil, err
	}
	// Who starts the counting from outside reads this line: the server's processor time is taken then.
	begin := time.Now().Add(given.warmUp)
	end := begin.Add(given.duration)
	var next atomic.Uint64
	var group sync.WaitGroup
	for _, each := range clients {
		group.Go(func() { each.work(requests, []byte(given.expect), &next, begin, end) })
	}
	time.Sleep(time.Until(begin))
	fmt.Println("begin")
	time.Sleep(time.Until(end))
	fmt.Println("end")
	group.Wait()
	return summarize(clients, given.duration), nil
}

func prepare(given options) ([][]byte, error) {
	content, err := os.ReadFile(given.bodies)
	if err != nil {
		return nil, err
	}
	var requests [][]byte
	for _, body := range bytes.Split(bytes.TrimSpace(content), []byte("\n")) {
		head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: kube-apiserver-admission\r\n"+
			"Content-Type: application/json\r\nAccept: application/json, */*\r\nContent-Length: %d\r\n\r\n",
			given.path, given.name, len(body))
		requests = append(requests, append([]byte(head), body...))
	}
	return requests, nil
}

func connect(given options) ([]*client, error) {
	certificate, err := os.ReadFile(given.authority)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(certificate) {
		return nil, fmt.Errorf("%s holds no certificate", given.authority)
	}
	configuration := &tls.Config{RootCAs: pool, ServerName: given.name, NextProtos: []string{"http/1.1"}}
	clients := make([]*client, given.connections)
	for index := range clients {
		connection, err := tls.Dial("tcp", given.address, configuration)
		if err != nil {
			return nil, err
		}
		clients[index] = &client{connection: connection, reader: bufio.NewReader(connection)}
	}
	return clients, nil
}

func (c *client) work(requests [][]byte, expect []byte, next *atomic.Uint64, begin, end time.Time) {
	defer c.connection.Close()
	c.latencies = make([]time.Duration, 0, 1<<16)
	for {
		request := requests[next.Add(1)%uint64(len(requests))]
		sent := time.Now()
		if !sent.Before(end) {
			return
		}
		err := c.exchange(request, expect)
		if sent.Before(begin) && err == nil {
			continue
		}
		if err != nil {
			c.failed++
			c.failure = err
			return
		}
		c.latencies = append(c.latencies, time.Since(sent))
	}
}

func (c *client) exchange(request, expect []byte) error {
	if _, err := c.connection.Write(request); err != nil {
		return err
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || !bytes.Contains(body, expect) {
		return errors.New(response.Status + ": " + string(body))
	}
	return nil
}

func summarize(clients []*client, duration time.Duration) *report {
	found := &report{Seconds: duration.Seconds()}
	var all []time.Duration
	for _, each := range clients {
		all = append(all, each.latencies...)
		found.Failed += each.failed
		if each.failure != nil {
			found.Failure = each.failure.Error()
		}
	}
	slices.Sort(all)
	found.Reviews = len(all)
	if len(all) > 0 {
		at := func(part float64) float64 { return all[int(part*float64(len(all)-1))].Seconds() * 1000 }
		found.P50, found.P99, found.Slowest = at(0.50), at(0.99), at(1)
	}
	return found
}
