package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// balancers has what members agree on by name; "consumer" stands for KIP-848, where the coordinator assigns.
var balancers = map[string]kgo.GroupOpt{
	"range":              kgo.Balancers(kgo.RangeBalancer()),
	"roundrobin":         kgo.Balancers(kgo.RoundRobinBalancer()),
	"sticky":             kgo.Balancers(kgo.StickyBalancer()),
	"cooperative-sticky": kgo.Balancers(kgo.CooperativeStickyBalancer()),
	"consumer":           kgo.ServerSideBalancer(),
}

// held is what a member has. Each change is printed as a line {"partitions": [["topic", 0], …]}.
type held struct {
	mutex      sync.Mutex
	partitions map[string]map[int32]bool
	out        *json.Encoder
}

func (h *held) change(_ context.Context, _ *kgo.Client, topics map[string][]int32, have bool) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for topic, numbers := range topics {
		if h.partitions[topic] == nil {
			h.partitions[topic] = map[int32]bool{}
		}
		for _, number := range numbers {
			h.partitions[topic][number] = have
		}
	}
	all := [][2]any{}
	for topic, numbers := range h.partitions {
		for number, has := range numbers {
			if has {
				all = append(all, [2]any{topic, number})
			}
		}
	}
	_ = h.out.Encode(map[string]any{"partitions": all})
}

// member stays in a group until standard input ends, and leaves it then.
func member(options []kgo.Opt, topics, group, balancer string) error {
	chosen, known := balancers[balancer]
	if !known || group == "" {
		return errors.New("member: -group and a known -balancer are needed")
	}
	has := &held{partitions: map[string]map[int32]bool{}, out: json.NewEncoder(os.Stdout)}
	came := func(ctx context.Context, client *kgo.Client, topics map[string][]int32) {
		has.change(ctx, client, topics, true)
	}
	went := func(ctx context.Context, client *kgo.Client, topics map[string][]int32) {
		has.change(ctx, client, topics, false)
	}
	options = append(options,
		kgo.ConsumeTopics(strings.Split(topics, ",")...), kgo.ConsumerGroup(group), chosen, kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(200*time.Millisecond), kgo.SessionTimeout(6*time.Second),
		kgo.OnPartitionsAssigned(came), kgo.OnPartitionsRevoked(went), kgo.OnPartitionsLost(went),
	)
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	polling, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		for polling.Err() == nil {
			client.PollFetches(polling)
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
