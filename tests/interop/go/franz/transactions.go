package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type writer struct {
	ProducerID int64 `json:"producer_id"`
	Epoch      int16 `json:"epoch"`
	Sequence   int32 `json:"sequence"`
	Start      int64 `json:"start"`
}

type transaction struct {
	Listed     string   `json:"listed"`
	State      string   `json:"state"`
	ProducerID int64    `json:"producer_id"`
	Epoch      int16    `json:"epoch"`
	TimeoutMS  int32    `json:"timeout_ms"`
	StartMS    int64    `json:"start_ms"`
	Partitions []int32  `json:"partitions"`
	Writers    []writer `json:"writers"`
}

// transactions prints what franz-go's administrator finds about one transactional id and about partition 0 of the topic.
// With abort, it first ends every transaction that is open in that partition.
func transactions(deadline context.Context, options []kgo.Opt, topic, transactionalID string, abort bool) error {
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	partition := make(kadm.TopicsSet)
	partition.Add(topic, 0)
	if abort {
		if err := abortOpen(deadline, admin, partition); err != nil {
			return err
		}
	}

	found := transaction{Writers: []writer{}, Partitions: []int32{}}
	listed, err := admin.ListTransactionsByTxPattern(deadline, nil, nil, transactionalID)
	if err != nil {
		return err
	}
	found.Listed = listed[transactionalID].State
	described, err := admin.DescribeTransactions(deadline, transactionalID)
	if err != nil {
		return err
	}
	one := described[transactionalID]
	if one.Err != nil {
		return one.Err
	}
	found.State, found.ProducerID, found.Epoch = one.State, one.ProducerID, one.ProducerEpoch
	found.TimeoutMS, found.StartMS = one.TimeoutMillis, one.StartTimestamp
	one.Topics.Each(func(_ string, number int32) { found.Partitions = append(found.Partitions, number) })
	producers, err := admin.DescribeProducers(deadline, partition)
	if err != nil {
		return err
	}
	producers.EachProducer(func(one kadm.DescribedProducer) {
		found.Writers = append(found.Writers,
			writer{one.ProducerID, one.ProducerEpoch, one.LastSequence, one.CurrentTxnStartOffset})
	})
	return json.NewEncoder(os.Stdout).Encode(found)
}

func abortOpen(deadline context.Context, admin *kadm.Client, partition kadm.TopicsSet) error {
	producers, err := admin.DescribeProducers(deadline, partition)
	if err != nil {
		return err
	}
	var markers []kadm.TxnMarkers
	producers.EachProducer(func(one kadm.DescribedProducer) {
		if one.CurrentTxnStartOffset >= 0 {
			markers = append(markers, kadm.TxnMarkers{
				ProducerID:       one.ProducerID,
				ProducerEpoch:    one.ProducerEpoch,
				CoordinatorEpoch: max(one.CoordinatorEpoch, 0),
				Topics:           partition,
			})
		}
	})
	written, err := admin.WriteTxnMarkers(deadline, markers...)
	if err != nil {
		return err
	}
	var refused error
	written.EachPartition(func(one kadm.TxnMarkersPartitionResponse) {
		if one.Err != nil {
			refused = one.Err
		}
	})
	return refused
}
