// franz writes standard input to a topic, line by line, or prints a topic's records: franz-go as a peer in tests.
//
//	franz produce -brokers HOST:PORT -topic T [-partition N] [-codec lz4] [-acks all] [-transactional-id ID]
//	franz consume -brokers HOST:PORT -topic T -count N [-isolation read_committed] [-group G]
//	franz mirror -brokers HOST:PORT -topic T -target HOST:PORT -target-topic U -count N [-codec lz4]
//	franz member -brokers HOST:PORT -topic T,U -group G -balancer range
//	franz transactions -brokers HOST:PORT -topic T -transactional-id ID [-abort]
//
// The first two print one JSON object per record, mirror (mirror.go) prints nothing, member (member.go) prints each assignment, transactions (transactions.go) one object. Exit status 1 and a message when anything fails or the deadline passes.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type written struct {
	Partition int32 `json:"partition"`
	Offset    int64 `json:"offset"`
}

type header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

type read struct {
	Partition   int32    `json:"partition"`
	Offset      int64    `json:"offset"`
	TimestampMS int64    `json:"timestamp_ms"`
	Key         []byte   `json:"key"`
	Value       []byte   `json:"value"`
	Headers     []header `json:"headers"`
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "franz:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("produce, consume, mirror, member or transactions?")
	}
	flags := flag.NewFlagSet(arguments[0], flag.ContinueOnError)
	brokers := flags.String("brokers", "", "HOST:PORT,…")
	topic := flags.String("topic", "", "topic")
	partition := flags.Int("partition", -1, "write to this partition; -1: any")
	codec := flags.String("codec", "none", "none, gzip, snappy, lz4, zstd")
	acks := flags.String("acks", "all", "all, 1 (without idempotence)")
	transactionalID := flags.String("transactional-id", "", "write everything in one transaction; the one to describe")
	count := flags.Int("count", 0, "records to read")
	isolation := flags.String("isolation", "read_uncommitted", "or read_committed")
	group := flags.String("group", "", "read as a member of this group, commit at the end")
	balancer := flags.String("balancer", "", "how the group shares partitions")
	target := flags.String("target", "", "HOST:PORT,… of the cluster to copy to")
	targetTopic := flags.String("target-topic", "", "the topic there")
	abort := flags.Bool("abort", false, "end the open transactions of partition 0")
	timeout := flags.Duration("timeout", 30*time.Second, "for everything")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	deadline, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(*brokers, ",")...)}

	compression, known := codecs[*codec]
	if !known {
		return fmt.Errorf("codec %q", *codec)
	}

	switch arguments[0] {
	case "produce":
		options = append(options, kgo.DefaultProduceTopic(*topic), kgo.ProducerBatchCompression(compression))
		if *partition >= 0 {
			options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))
		}
		if *acks == "1" {
			options = append(options, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
		}
		if *transactionalID != "" {
			options = append(options, kgo.TransactionalID(*transactionalID))
		}
		return produce(deadline, options, int32(*partition), *transactionalID != "")
	case "consume":
		options = append(options, kgo.ConsumeTopics(*topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if *isolation == "read_committed" {
			options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
		}
		if *group != "" {
			options = append(options, kgo.ConsumerGroup(*group), kgo.DisableAutoCommit())
		}
		return consume(deadline, options, *count, *group != "")
	case "mirror":
		options = append(options, kgo.ConsumeTopics(*topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		return mirror(deadline, options, *target, *targetTopic, compression, *count)
	case "member":
		return member(options, *topic, *group, *balancer)
	case "transactions":
		return transactions(deadline, options, *topic, *transactionalID, *abort)
	}
	return fmt.Errorf("produce, consume, mirror, member or transactions, not %q", arguments[0])
}

func produce(deadline context.Context, options []kgo.Opt, partition int32, transactional bool) error {
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	if transactional {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
	}
	var records []*kgo.Record
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		records = append(records, &kgo.Record{Value: bytes.Clone(lines.Bytes()), Partition: max(partition, 0)})
	}
	if err := lines.Err(); err != nil {
		return err
	}
	results := client.ProduceSync(deadline, records...)
	if err := results.FirstErr(); err != nil {
		return err
	}
	if transactional {
		if err := client.EndTransaction(deadline, kgo.TryCommit); err != nil {
			return err
		}
	}
	out := json.NewEncoder(os.Stdout)
	for _, result := range results {
		if err := out.Encode(written{result.Record.Partition, result.Record.Offset}); err != nil {
			return err
		}
	}
	return nil
}

func consume(deadline context.Context, options []kgo.Opt, count int, commit bool) error {
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	out := json.NewEncoder(os.Stdout)
	for seen := 0; seen < count; {
		fetches := client.PollRecords(deadline, count-seen)
		for _, failure := range fetches.Errors() {
			return fmt.Errorf("after %d of %d records: %w", seen, count, failure.Err)
		}
		for _, record := range fetches.Records() {
			seen++
			printed := read{record.Partition, record.Offset, record.Timestamp.UnixMilli(), record.Key, record.Value, nil}
			for _, each := range record.Headers {
				printed.Headers = append(printed.Headers, header{each.Key, each.Value})
			}
			if err := out.Encode(printed); err != nil {
				return err
			}
		}
	}
	if commit {
		return client.CommitUncommittedOffsets(deadline)
	}
	return nil
}
