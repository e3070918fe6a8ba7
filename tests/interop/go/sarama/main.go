// sarama writes standard input to a topic, line by line, or prints a topic's records: IBM/sarama as a peer in tests.
//
//	sarama produce -brokers HOST:PORT -topic T [-partition N] [-codec lz4] [-acks all] [-transactional-id ID]
//	sarama consume -brokers HOST:PORT -topic T -count N [-isolation read_committed]
//
//	sarama partition -partitioner hash|crc -partitions N
//
// The last prints the partition of each key on standard input (hexadecimal, line by line), and needs no broker; the
// others print one JSON object per record. Exit status 1 and a message when anything fails or the deadline passes.
package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
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

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sarama:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("produce, consume or partition?")
	}
	flags := flag.NewFlagSet(arguments[0], flag.ContinueOnError)
	brokers := flags.String("brokers", "", "HOST:PORT,…")
	topic := flags.String("topic", "", "topic")
	partition := flags.Int("partition", -1, "write to this partition; -1: any")
	codec := flags.String("codec", "none", "none, gzip, snappy, lz4, zstd")
	acks := flags.String("acks", "all", "all, 1 (without idempotence)")
	transactionalID := flags.String("transactional-id", "", "write everything in one transaction")
	count := flags.Int("count", 0, "records to read")
	isolation := flags.String("isolation", "read_uncommitted", "or read_committed")
	partitioner := flags.String("partitioner", "hash", "or crc")
	partitions := flags.Int("partitions", 1, "to choose from")
	timeout := flags.Duration("timeout", 30*time.Second, "for everything")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	addresses := strings.Split(*brokers, ",")
	time.AfterFunc(*timeout, func() {
		fmt.Fprintln(os.Stderr, "sarama: deadline passed")
		os.Exit(1)
	})
	config := sarama.NewConfig()
	config.Version = sarama.V3_0_0_0

	switch arguments[0] {
	case "produce":
		compression, known := codecs[*codec]
		if !known {
			return fmt.Errorf("codec %q", *codec)
		}
		config.Producer.Compression = compression
		config.Producer.Return.Successes = true
		config.Producer.RequiredAcks = sarama.WaitForLocal
		if *acks == "all" {
			config.Producer.RequiredAcks = sarama.WaitForAll
			config.Producer.Idempotent = true
			config.Net.MaxOpenRequests = 1
		}
		config.Producer.Transaction.ID = *transactionalID
		if *partition >= 0 {
			config.Producer.Partitioner = sarama.NewManualPartitioner
		}
		return produce(addresses, config, *topic, int32(max(*partition, 0)))
	case "consume":
		if *isolation == "read_committed" {
			config.Consumer.IsolationLevel = sarama.ReadCommitted
		}
		config.Consumer.Return.Errors = true
		return consume(addresses, config, *topic, *count)
	}
	if arguments[0] == "partition" {
		constructors := map[string]sarama.PartitionerConstructor{
			"hash": sarama.NewHashPartitioner,
			"crc":  sarama.NewConsistentCRCHashPartitioner,
		}
		return partitionKeys(constructors[*partitioner](*topic), int32(*partitions))
	}
	return fmt.Errorf("produce, consume or partition, not %q", arguments[0])
}

func partitionKeys(partitioner sarama.Partitioner, partitions int32) error {
	lines := bufio.NewScanner(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	for lines.Scan() {
		key, err := hex.DecodeString(lines.Text())
		if err != nil {
			return err
		}
		chosen, err := partitioner.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}, partitions)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, chosen)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return out.Flush()
}

func produce(brokers []string, config *sarama.Config, topic string, partition int32) error {
	producer, err := sarama.NewSyncProducer(brokers, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		value := sarama.ByteEncoder(bytes.Clone(lines.Bytes()))
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Partition: partition, Value: value})
	}
	if err := lines.Err(); err != nil {
		return err
	}
	transactional := config.Producer.Transaction.ID != ""
	if transactional {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
	}
	if err := producer.SendMessages(messages); err != nil {
		return err
	}
	if transactional {
		if err := producer.CommitTxn(); err != nil {
			return err
		}
	}
	out := json.NewEncoder(os.Stdout)
	for _, message := range messages {
		if err := out.Encode(written{message.Partition, message.Offset}); err != nil {
			return err
		}
	}
	return nil
}

func consume(brokers []string, config *sarama.Config, topic string, count int) error {
	consumer, err := sarama.NewConsumer(brokers, config)
	if err != nil {
		return err
	}
	partitions, err := consumer.Partitions(topic)
	if err != nil {
		return err
	}
	messages := make(chan *sarama.ConsumerMessage)
	failures := make(chan error)
	for _, partition := range partitions {
		one, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		if err != nil {
			return err
		}
		go func() {
			for message := range one.Messages() {
				messages <- message
			}
		}()
		go func() {
			for failure := range one.Errors() {
				failures <- failure
			}
		}()
	}
	out := json.NewEncoder(os.Stdout)
	for seen := 0; seen < count; seen++ {
		select {
		case failure := <-failures:
			return fmt.Errorf("after %d of %d records: %w", seen, count, failure)
		case message := <-messages:
			printed := read{message.Partition, message.Offset, message.Timestamp.UnixMilli(), message.Key, message.Value, nil}
			for _, each := range message.Headers {
				printed.Headers = append(printed.Headers, header{string(each.Key), each.Value})
			}
			if err := out.Encode(printed); err != nil {
				return err
			}
		}
	}
	return nil
}
