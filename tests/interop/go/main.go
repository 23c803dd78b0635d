// One client of client-go, as the command line says; it prints one JSON object per line for what it sees.
//
//	client OPERATION '{"nameServers": "127.0.0.1:9876", ...}'
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type options struct {
	NameServers string   `json:"nameServers"`
	AccessKey   string   `json:"accessKey"`
	SecretKey   string   `json:"secretKey"`
	Group       string   `json:"group"`
	Topic       string   `json:"topic"`
	Bodies      []string `json:"bodies"`
	Tags        string   `json:"tags"`
	DelayLevel  int      `json:"delayLevel"`
	SQL         string   `json:"sql"`
	Ordered     bool     `json:"ordered"`
	Failures    int32    `json:"failures"` // how often each message fails before it is consumed
	Count       int      `json:"count"`    // messages after which the client ends
	Traced      bool     `json:"traced"`
}

type seen struct {
	Event          string `json:"event"`
	Body           string `json:"body,omitempty"`
	Tags           string `json:"tags,omitempty"`
	QueueID        int    `json:"queueId"`
	QueueOffset    int64  `json:"queueOffset"`
	ReconsumeTimes int32  `json:"reconsumeTimes"`
	ID             string `json:"id,omitempty"`
	Text           string `json:"text,omitempty"`
}

var printing sync.Mutex

func tell(what seen) {
	line, _ := json.Marshal(what)
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		tell(seen{Event: "error", Text: err.Error()})
		os.Exit(1)
	}
}

func (o options) servers() []string { return strings.Split(o.NameServers, ";") }

func (o options) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: o.AccessKey, SecretKey: o.SecretKey}
}

func (o options) producerOptions() []producer.Option {
	given := []producer.Option{
		producer.WithGroupName(o.Group),
		producer.WithNsResolver(primitive.NewPassthroughResolver(o.servers())),
		producer.WithCredentials(o.credentials()),
		producer.WithSendMsgTimeout(30 * time.Second),
		producer.WithRetry(0),
	}
	if o.Traced {
		given = append(given, producer.WithTrace(&primitive.TraceConfig{
			Access:       primitive.Local,
			Resolver:     primitive.NewPassthroughResolver(o.servers()),
			Credentials:  o.credentials(),
			NamesrvAddrs: o.servers(),
		}))
	}
	return given
}

func (o options) message(body string) *primitive.Message {
	message := primitive.NewMessage(o.Topic, []byte(body))
	if o.Tags != "" {
		message.WithTag(o.Tags)
	}
	if o.DelayLevel > 0 {
		message.WithDelayTimeLevel(o.DelayLevel)
	}
	message.WithKeys([]string{"key-" + body})
	message.WithProperty("number", body[len(body)-1:])
	return message
}

func send(o options) {
	sender, err := rocketmq.NewProducer(o.producerOptions()...)
	check(err)
	check(sender.Start())
	for _, body := range o.Bodies {
		result, err := sender.SendSync(context.Background(), o.message(body))
		check(err)
		tell(seen{Event: "sent", Body: body, ID: result.MsgID, QueueID: result.MessageQueue.QueueId, QueueOffset: result.QueueOffset})
	}
	if o.Traced {
		time.Sleep(2 * time.Second) // what is traced is written by another goroutine, which a shutdown stops
	}
	check(sender.Shutdown())
}

// The first word of a body says what the local transaction answers, the second what a check answers.
type listener struct{ checked chan string }

var states = map[string]primitive.LocalTransactionState{
	"COMMIT":   primitive.CommitMessageState,
	"ROLLBACK": primitive.RollbackMessageState,
	"UNKNOWN":  primitive.UnknowState,
}

func (l listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return states[strings.Fields(string(message.Body))[0]]
}

func (l listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	l.checked <- string(message.Body)
	return states[strings.Fields(string(message.Body))[1]]
}

func transact(o options) {
	answers := listener{make(chan string, 1000)}
	sender, err := rocketmq.NewTransactionProducer(answers, o.producerOptions()...)
	check(err)
	check(sender.Start())
	open := map[string]bool{}
	for _, body := range o.Bodies {
		result, err := sender.SendMessageInTransaction(context.Background(), o.message(body))
		check(err)
		tell(seen{Event: "sent", Body: body, ID: result.MsgID})
		if strings.HasPrefix(body, "UNKNOWN") {
			open[body] = true
		}
	}
	for len(open) > 0 {
		body := <-answers.checked
		if open[body] {
			delete(open, body)
			tell(seen{Event: "checked", Body: body})
		}
	}
	time.Sleep(time.Second) // the last answer is written by another goroutine
	check(sender.Shutdown())
}

func ask(o options) {
	asker, err := rocketmq.NewProducer(o.producerOptions()...)
	check(err)
	check(asker.Start())
	for _, body := range o.Bodies {
		reply, err := asker.Request(context.Background(), time.Minute, o.message(body))
		check(err)
		tell(seen{Event: "reply", Body: string(reply.Body)})
	}
	check(asker.Shutdown())
}

func consume(o options, handle func(*primitive.MessageExt) error) {
	from := consumer.ConsumeFromFirstOffset
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	if o.Tags != "" {
		selector.Expression = o.Tags
	}
	if o.SQL != "" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: o.SQL}
	}
	given := []consumer.Option{
		consumer.WithGroupName(o.Group),
		consumer.WithNsResolver(primitive.NewPassthroughResolver(o.servers())),
		consumer.WithCredentials(o.credentials()),
		consumer.WithConsumeFromWhere(from),
		consumer.WithConsumerOrder(o.Ordered),
		consumer.WithMaxReconsumeTimes(16),
	}
	if o.Traced {
		given = append(given, consumer.WithTrace(&primitive.TraceConfig{
			Access:       primitive.Local,
			Resolver:     primitive.NewPassthroughResolver(o.servers()),
			Credentials:  o.credentials(),
			GroupName:    o.Group,
			NamesrvAddrs: o.servers(),
		}))
	}
	reader, err := rocketmq.NewPushConsumer(given...)
	check(err)
	left := make(chan int, 10000)
	check(reader.Subscribe(o.Topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			failed := message.ReconsumeTimes < o.Failures
			event := "consumed"
			if failed {
				event = "failed"
			}
			if handle != nil {
				check(handle(message))
			}
			tell(seen{
				Event: event, Body: string(message.Body), Tags: message.GetTags(), ID: message.MsgId,
				QueueID: message.Queue.QueueId, QueueOffset: message.QueueOffset, ReconsumeTimes: message.ReconsumeTimes,
			})
			if failed {
				if o.Ordered {
					return consumer.SuspendCurrentQueueAMoment, nil
				}
				return consumer.ConsumeRetryLater, nil
			}
			left <- 1
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(reader.Start())
	tell(seen{Event: "started"})
	for done := 0; done < o.Count; done++ {
		<-left
	}
	time.Sleep(200 * time.Millisecond) // so that what comes twice is seen
	check(reader.Shutdown())           // commits what was consumed
}

func reply(o options) {
	sender, err := rocketmq.NewProducer(o.producerOptions()...)
	check(err)
	check(sender.Start())
	consume(o, func(message *primitive.MessageExt) error {
		answer, err := consumer.CreateReplyMessage(message, nil)
		if err != nil {
			return err
		}
		answer.Body = []byte("reply to " + string(message.Body)) // CreateReplyMessage of 2.1.2 forgets it
		_, err = sender.SendSync(context.Background(), answer)
		return err
	})
	check(sender.Shutdown())
}

func main() {
	rlog.SetLogLevel("error")
	var given options
	check(json.Unmarshal([]byte(os.Args[2]), &given))
	switch os.Args[1] {
	case "send":
		send(given)
	case "transact":
		transact(given)
	case "ask":
		ask(given)
	case "consume":
		consume(given, nil)
	case "reply":
		reply(given)
	default:
		check(fmt.Errorf("no operation %s", os.Args[1]))
	}
}
