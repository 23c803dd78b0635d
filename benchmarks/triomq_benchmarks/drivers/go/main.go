// Puts load on a broker with client-go: one JSON object per line in, one per line out, as LoadDriver.java does.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type command struct {
	Op          string  `json:"op"`
	NameServers string  `json:"nameServers"`
	Topic       string  `json:"topic"`
	Links       int     `json:"links"`
	InFlight    int     `json:"inFlight"`
	Mode        string  `json:"mode"`
	Batch       int     `json:"batch"`
	BodyBytes   int     `json:"bodyBytes"`
	Count       int64   `json:"count"`
	MaxSeconds  float64 `json:"maxSeconds"`
	SendFirst   bool    `json:"sendFirst"`
}

type answer struct {
	Error        string  `json:"error,omitempty"`
	Messages     int64   `json:"messages"`
	Bytes        int64   `json:"bytes"`
	Failures     int64   `json:"failures"`
	FirstFailure string  `json:"firstFailure,omitempty"`
	Seconds      float64 `json:"seconds"`
	CPUSeconds   float64 `json:"cpuSeconds"`
	P50          float64 `json:"p50Us"`
	P99          float64 `json:"p99Us"`
}

const sendTimeout = 10 * time.Second

// How long a first message may take on a busy machine.
const routePatience = 60 * time.Second

// Producers stay open between commands, as in a long-lived application.
var producers = map[string]rocketmq.Producer{}

func open(nameServers string) (rocketmq.Producer, error) {
	if found, ok := producers[nameServers]; ok {
		return found, nil
	}
	made, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver(strings.Split(nameServers, ";"))),
		producer.WithGroupName("bench_producer"),
		producer.WithInstanceName(fmt.Sprintf("bench%d", len(producers))),
		producer.WithRetry(0),
		producer.WithSendMsgTimeout(sendTimeout),
		producer.WithCompressMsgBodyOverHowmuch(1<<30),
	)
	if err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	producers[nameServers] = made
	return made, nil
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

type run struct {
	asked    command
	sender   rocketmq.Producer
	body     []byte
	left     int64
	deadline time.Time
	nanos    []int64
	answered int64
	failures int64
	first    atomic.Value
}

func (r *run) more() bool {
	return atomic.AddInt64(&r.left, -1) >= 0 && time.Now().Before(r.deadline)
}

func (r *run) message() *primitive.Message {
	return primitive.NewMessage(r.asked.Topic, r.body).WithTag("bench")
}

func (r *run) record(started time.Time, result *primitive.SendResult, err error) {
	if err == nil && result.Status != primitive.SendOK {
		err = fmt.Errorf("status %d", result.Status)
	}
	if err != nil {
		if atomic.AddInt64(&r.failures, 1) == 1 {
			r.first.Store(err.Error())
		}
		return
	}
	if at := atomic.AddInt64(&r.answered, 1) - 1; at < int64(len(r.nanos)) {
		r.nanos[at] = time.Since(started).Nanoseconds()
	}
}

// One message before the clock starts. While client-go asks for a topic's route the first time, its other sends do
// not wait: they fail at once, as they do when the question is not answered in time.
func (r *run) firstSend() error {
	for end := time.Now().Add(routePatience); ; time.Sleep(100 * time.Millisecond) {
		_, err := r.sender.SendSync(context.Background(), r.message())
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

func (r *run) sync() {
	for r.more() {
		started := time.Now()
		result, err := r.sender.SendSync(context.Background(), r.message())
		r.record(started, result, err)
	}
}

func (r *run) async() {
	room := make(chan struct{}, r.asked.InFlight)
	for r.more() {
		room <- struct{}{}
		started := time.Now()
		err := r.sender.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			r.record(started, result, err)
			<-room
		}, r.message())
		if err != nil {
			r.record(started, nil, err)
			<-room
		}
	}
	for i := 0; i < r.asked.InFlight; i++ {
		room <- struct{}{}
	}
}

func send(asked command) answer {
	if asked.Op != "send" || asked.Links != 1 || asked.Batch > 1 {
		return answer{Error: "this driver only sends single messages over one link"}
	}
	sender, err := open(asked.NameServers)
	if err != nil {
		return answer{Error: err.Error()}
	}
	r := &run{asked: asked, sender: sender, left: asked.Count, nanos: make([]int64, asked.Count)}
	r.body = make([]byte, asked.BodyBytes)
	for i := range r.body {
		r.body[i] = byte('a' + i%26)
	}
	if asked.SendFirst {
		if err := r.firstSend(); err != nil {
			return answer{Error: err.Error()}
		}
	}
	cpuBefore, begin := cpuSeconds(), time.Now()
	r.deadline = begin.Add(time.Duration(asked.MaxSeconds * float64(time.Second)))
	if asked.Mode == "async" {
		r.async()
	} else {
		var all sync.WaitGroup
		for i := 0; i < asked.InFlight; i++ {
			all.Add(1)
			go func() {
				defer all.Done()
				r.sync()
			}()
		}
		all.Wait()
	}
	found := answer{Seconds: time.Since(begin).Seconds(), CPUSeconds: cpuSeconds() - cpuBefore}
	found.Messages, found.Failures = r.answered, r.failures
	found.Bytes = r.answered * int64(asked.BodyBytes)
	if first, ok := r.first.Load().(string); ok {
		found.FirstFailure = first
	}
	times := r.nanos[:min(r.answered, int64(len(r.nanos)))]
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	if len(times) > 0 {
		found.P50 = float64(times[len(times)/2]) / 1e3
		found.P99 = float64(times[len(times)*99/100]) / 1e3
	}
	return found
}

func main() {
	rlog.SetLogLevel("error")
	lines := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked command
		found := answer{}
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			found.Error = err.Error()
		} else {
			found = send(asked)
		}
		if err := answers.Encode(found); err != nil {
			return
		}
	}
}
