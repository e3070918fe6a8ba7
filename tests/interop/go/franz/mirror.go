package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
)

// mirror copies count records of topic to targetTopic on another cluster: partition, key, value, headers and time stay.
func mirror(deadline context.Context, from []kgo.Opt, target, targetTopic string, codec kgo.CompressionCodec, count int) error {
	source, err := kgo.NewClient(from...)
	if err != nil {
		return err
	}
	defer source.Close()
	sink, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(target, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codec),
	)
	if err != nil {
		return err
	}
	defer sink.Close()
	var failed atomic.Pointer[error]
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			failed.CompareAndSwap(nil, &err)
		}
	}
	for seen := 0; seen < count; {
		fetches := source.PollFetches(deadline)
		for _, failure := range fetches.Errors() {
			return fmt.Errorf("after %d of %d records: %w", seen, count, failure.Err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			seen++
			sink.Produce(deadline, &kgo.Record{
				Topic: targetTopic, Partition: record.Partition, Timestamp: record.Timestamp,
				Key: record.Key, Value: record.Value, Headers: record.Headers,
			}, promise)
		})
	}
	if err := sink.Flush(deadline); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
