package writer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/atoll-k8s/atoll/internal/coordinator/records"
	"github.com/atoll-k8s/atoll/internal/governance"
)

const (
	// recordPrefix begins the keys of records. An API server reads nothing outside /registry.
	recordPrefix = "/atoll/of/"
	// holderKey names who has loaded the etcd last.
	holderKey = "/atoll/holder"
	// pageSize is how many records are read at a time, and removeAtOnce how many objects are removed in one
	// transaction: etcd takes 128 operations.
	pageSize, removeAtOnce = 500, 60
	// freeEvery is the least time between two attempts to make place, during which etcd answers nobody, and freeWithin
	// bounds each.
	freeEvery, freeWithin = 10 * time.Second, 20 * time.Second
)

// errNotHeld is the error of a change of an etcd that was emptied, or that another writer has loaded, since this
// writer has loaded it.
var errNotHeld = errors.New("etcd was emptied, or another writer has loaded it")

// Etcd stores objects where an API server reads them, each with its record in the same transaction.
type Etcd struct {
	client *clientv3.Client
	// holder is another one for each call of Load: what was sent before, and is late, changes nothing.
	holder string
	// freed is when place was made last.
	freed time.Time
}

// NewEtcd returns the storage of an etcd.
func NewEtcd(client *clientv3.Client) *Etcd { return &Etcd{client: client} }

// stored is a record with the name of its object.
type stored struct {
	governance.Ref
	records.Record
}

func recordKey(ref governance.Ref) string { return recordPrefix + ref.String() }

// Load implements Storage. From then on no other writer can change anything, nor can what this one has sent before.
// A record that cannot be read is left out: the next upload of its object replaces it.
func (e *Etcd) Load(ctx context.Context) (map[governance.Ref]records.Record, error) {
	e.holder = rand.Text()
	if _, err := e.client.Put(ctx, holderKey, e.holder); err != nil {
		return nil, fmt.Errorf("taking hold of etcd: %w", e.orFull(ctx, err))
	}
	records := map[governance.Ref]records.Record{}
	end := clientv3.GetPrefixRangeEnd(recordPrefix)
	for from := recordPrefix; ; {
		page, err := e.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize))
		if err != nil {
			return nil, fmt.Errorf("reading the records of etcd: %w", err)
		}
		for _, kv := range page.Kvs {
			var s stored
			if json.Unmarshal(kv.Value, &s) == nil && s.Validate() == nil && recordKey(s.Ref) == string(kv.Key) {
				records[s.Ref] = s.Record
			}
			from = string(kv.Key) + "\x00"
		}
		if !page.More {
			return records, nil
		}
	}
}

// Put implements Storage.
func (e *Etcd) Put(ctx context.Context, ref governance.Ref, record records.Record, body []byte) error {
	text, err := json.Marshal(stored{ref, record})
	if err != nil {
		return err
	}
	return e.change(ctx, clientv3.OpPut(ref.Key(), string(body)), clientv3.OpPut(recordKey(ref), string(text)))
}

// Remove implements Storage.
func (e *Etcd) Remove(ctx context.Context, refs []governance.Ref) error {
	for some := range slices.Chunk(refs, removeAtOnce) {
		var ops []clientv3.Op
		for _, ref := range some {
			ops = append(ops, clientv3.OpDelete(ref.Key()), clientv3.OpDelete(recordKey(ref)))
		}
		if err := e.change(ctx, ops...); err != nil {
			return err
		}
	}
	return nil
}

// Check implements Storage.
func (e *Etcd) Check(ctx context.Context) error { return e.change(ctx) }

// change changes etcd, if this writer has loaded it.
func (e *Etcd) change(ctx context.Context, ops ...clientv3.Op) error {
	isHeld := clientv3.Compare(clientv3.Value(holderKey), "=", e.holder)
	answer, err := e.client.Txn(ctx).If(isHeld).Then(ops...).Commit()
	if err != nil {
		return fmt.Errorf("writing to etcd: %w", e.orFull(ctx, err))
	}
	if !answer.Succeeded {
		return errNotHeld
	}
	return nil
}

// orFull makes place if an error says that etcd is full: nothing was changed then, and the error is a refusal.
func (e *Etcd) orFull(ctx context.Context, err error) error {
	if errors.Is(err, rpctypes.ErrRequestTooLarge) { // nothing was changed
		return &records.Refusal{Reason: records.Full, Message: "etcd takes no object that large"}
	}
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		return err
	}
	message := "etcd is full"
	if time.Since(e.freed) > freeEvery {
		e.freed = time.Now()
		message = "etcd was full, and what was there before was removed"
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeWithin)
		defer cancel()
		if err := e.free(within); err != nil {
			message = fmt.Sprintf("etcd is full, and no place can be made: %v", err)
		}
	}
	return &records.Refusal{Reason: records.Full, Message: message}
}

// free makes place in an etcd that is full: earlier versions go, and the alarm ends. Watches of the API server
// that are behind begin anew.
func (e *Etcd) free(ctx context.Context) error {
	answer, err := e.client.Get(ctx, holderKey)
	if err != nil {
		return err
	}
	if _, err := e.client.Compact(ctx, answer.Header.Revision, clientv3.WithCompactPhysical()); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return err
	}
	for _, endpoint := range e.client.Endpoints() {
		if _, err := e.client.Defragment(ctx, endpoint); err != nil {
			return err
		}
	}
	_, err = e.client.AlarmDisarm(ctx, &clientv3.AlarmMember{}) // all
	return err
}
