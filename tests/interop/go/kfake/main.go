// kfake runs franz-go's fake cluster as a broker written elsewhere, and does to it what standard input says.
//
//	kfake -brokers N -topic T -partitions P
//
// It prints the brokers' addresses as a JSON array, then takes one JSON command per line and answers each with {} once
// it is done (or with {"error": …}):
//
//	{"do": "fail", "key": 0, "code": 6, "count": 3}    answer so many requests of an API with an error, each partition
//	                                                   of them; REQUEST_TIMED_OUT after it has done what they ask for
//	{"do": "disconnect", "key": 0, "count": 2}         close the connection instead of answering
//	{"do": "move", "topic": "t", "partition": 1, "node": 2}
//	{"do": "remove", "node": 2}  {"do": "add", "node": 3}
//
// It ends with standard input.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type command struct {
	Do        string `json:"do"`
	Key       int16  `json:"key"`
	Code      int16  `json:"code"`
	Count     int    `json:"count"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Node      int32  `json:"node"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kfake:", err)
		os.Exit(1)
	}
}

func run() error {
	brokers := flag.Int("brokers", 3, "how many")
	topic := flag.String("topic", "events", "a topic that is there from the start")
	partitions := flag.Int("partitions", 4, "of it")
	flag.Parse()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(*brokers), kfake.SeedTopics(int32(*partitions), *topic))
	if err != nil {
		return err
	}
	defer cluster.Close()
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(cluster.ListenAddrs()); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var told command
		answer := map[string]string{}
		if err := json.Unmarshal(lines.Bytes(), &told); err != nil {
			answer["error"] = err.Error()
		} else if err := do(cluster, told); err != nil {
			answer["error"] = err.Error()
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func do(cluster *kfake.Cluster, told command) error {
	switch told.Do {
	case "fail":
		var known *kerr.Error
		if !errors.As(kerr.ErrorForCode(told.Code), &known) {
			return fmt.Errorf("error code %d", told.Code)
		}
		cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Key(told.Key)}, Err: known, Count: told.Count})
		return nil
	case "disconnect":
		for range told.Count {
			cluster.ControlKey(told.Key, func(kmsg.Request) (kmsg.Response, error, bool) {
				return nil, errors.New("disconnected on purpose"), true
			})
		}
		return nil
	case "move":
		return cluster.MoveTopicPartition(told.Topic, told.Partition, told.Node)
	case "remove":
		return cluster.RemoveNode(told.Node)
	case "add":
		_, _, err := cluster.AddNode(told.Node, 0)
		return err
	}
	return fmt.Errorf("do %q", told.Do)
}
