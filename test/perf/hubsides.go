package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/test/rawclient"
	"github.com/atoll-k8s/atoll/test/relay"
)

const (
	// gets and lists are how often an answer is asked for in a round, and changes how many events are
	// awaited.
	gets, lists, changes = 2000, 100, 200
	// crowdFor is how long the crowd asks in a round.
	crowdFor = 3 * time.Second
	// syncsFor is how long collections change in a round.
	syncsFor = 5 * time.Second
	// writtenChanges is the number of events whose bytes on disk are counted: several rewrites of the
	// log.
	writtenChanges = 600
	// startLimit is in milliseconds, binaryLimit in MB.
	startLimit, binaryLimit = 1000, 40
)

func (h *hubBench) sides(_ context.Context, name string) (a, b side, err error) {
	reads := func(client, path string, n int, change func(context.Context) (string, error)) func(context.Context) (sample, error) {
		return func(ctx context.Context) (sample, error) {
			return h.reads(ctx, h.clients[client], path, n, change)
		}
	}
	changeShard := func(ctx context.Context) (string, error) { return h.changeConfig(ctx, shardName(0)+"-0") }
	offline := func(path string, n int) func(context.Context) (sample, error) {
		return func(ctx context.Context) (sample, error) {
			if err := h.cutOff(ctx); err != nil {
				return sample{}, err
			}
			return h.reads(ctx, h.clients[farThrough], path, n, nil)
		}
	}
	node, pods, shard := nodePath(nearNode), podsPath(nearNode), shardPath(shardName(0))
	directGet := side{name: "get direct", measure: reads(nearDirect, node, gets, nil)}
	directList := side{name: "list direct", measure: reads(nearDirect, pods, lists, h.changePod)}
	switch name {
	case "get":
		return side{name: "get", measure: reads(nearThrough, node, gets, nil)}, directGet, nil
	case "list":
		return side{name: "list", measure: reads(nearThrough, pods, lists, h.changePod)}, directList, nil
	case "plain get":
		return side{name: name, measure: reads(nearPlain, node, gets, nil)}, directGet, nil
	case "plain list":
		return side{name: name, measure: reads(nearPlain, pods, lists, h.changePod)}, directList, nil
	case "plain throughput":
		return side{name: name, measure: h.asked(plainName)}, side{name: "throughput direct", measure: h.asked(direct)}, nil
	case "list others":
		return side{name: name, measure: reads(readerThrough, shard, lists, changeShard)}, side{name: name + " direct", measure: reads(readerDirect, shard, lists, changeShard)}, nil
	case "watch":
		return side{name: name, measure: h.delivered(nearThrough)}, side{name: name + " direct", measure: h.delivered(nearDirect)}, nil
	case "throughput":
		return side{name: name, measure: h.asked(through)}, side{name: name + " direct", measure: h.asked(direct)}, nil
	case "offline get":
		return side{name: name, measure: offline(nodePath(farNode), gets)}, directGet, nil
	case "offline list":
		return side{name: name, measure: offline(podsPath(farNode), lists)}, directList, nil
	case "written":
		return side{name: name, measure: h.written}, side{name: "the event", measure: h.eventSize}, nil
	case "syncs":
		return side{name: name, measure: h.syncs}, limit(name, hubShards+1), nil
	case "start":
		return side{name: name, measure: h.starts}, limit(name, startLimit), nil
	case "binary":
		return side{name: name, measure: h.binary}, limit(name, binaryLimit), nil
	default:
		return a, b, fmt.Errorf("choosing sides: there is no variant %q", name)
	}
}

// reads returns the median time of an answer. change, if set, changes something before each question, so
// that the hub has to store each answer.
func (h *hubBench) reads(ctx context.Context, c *rawclient.Client, path string, n int, change func(context.Context) (string, error)) (sample, error) {
	if _, err := c.Skip(ctx, path); err != nil { // to open a connection
		return sample{}, err
	}
	return h.observed(ctx, func(ctx context.Context) (float64, string, error) {
		times := make([]float64, n)
		for i := range times {
			if change != nil {
				if _, err := change(ctx); err != nil {
					return 0, "", err
				}
			}
			began := time.Now()
			if _, err := c.Skip(ctx, path); err != nil {
				return 0, "", err
			}
			times[i] = milliseconds(time.Since(began))
		}
		return median(times), fmt.Sprintf("%d answers", n), nil
	})
}

// delivered returns the median time from a change to its event.
func (h *hubBench) delivered(client string) func(context.Context) (sample, error) {
	return func(ctx context.Context) (s sample, err error) {
		w, err := openWatch(ctx, h.clients[client], podsPath(nearNode))
		if err != nil {
			return s, err
		}
		defer w.stop()
		return h.observed(ctx, func(ctx context.Context) (float64, string, error) {
			times := make([]float64, changes)
			for i := range times {
				began := time.Now()
				version, err := h.changePod(ctx)
				if err != nil {
					return 0, "", err
				}
				at, err := w.await(ctx, version)
				if err != nil {
					return 0, "", err
				}
				times[i] = milliseconds(at.Sub(began))
			}
			return median(times), fmt.Sprintf("%d events", changes), nil
		})
	}
}

// changePod changes one of the near node's pods, and returns its version.
func (h *hubBench) changePod(ctx context.Context) (string, error) {
	h.changed++
	name := fmt.Sprintf("%s-%s-%d", hubPods, nearNode, h.changed%h.options.pods)
	pod, err := h.client.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, h.change(), metav1.PatchOptions{})
	if err != nil {
		return "", fmt.Errorf("changing pod %q: %w", name, err)
	}
	return pod.ResourceVersion, nil
}

// changeConfig changes a ConfigMap, and returns its version.
func (h *hubBench) changeConfig(ctx context.Context, name string) (string, error) {
	h.changed++
	config, err := h.client.CoreV1().ConfigMaps(namespace).Patch(ctx, name, types.MergePatchType, h.change(), metav1.PatchOptions{})
	if err != nil {
		return "", fmt.Errorf("changing ConfigMap %q: %w", name, err)
	}
	return config.ResourceVersion, nil
}

func (h *hubBench) change() []byte {
	return fmt.Appendf(nil, `{"metadata":{"annotations":{"changed":"%d"}}}`, h.changed)
}

// asked returns how many answers the crowd gets a second.
func (h *hubBench) asked(way string) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		crowd, path := h.crowd[way], nodePath(nearNode)
		err := inParallel(ctx, crowdSize, crowd, func(ctx context.Context, c *rawclient.Client) error { // to open connections
			_, err := c.Skip(ctx, path)
			return err
		})
		if err != nil {
			return sample{}, err
		}
		return h.observed(ctx, func(ctx context.Context) (float64, string, error) {
			var answers atomic.Int64
			began := time.Now()
			err := inParallel(ctx, crowdSize, crowd, func(ctx context.Context, c *rawclient.Client) error {
				for time.Since(began) < crowdFor {
					if _, err := c.Skip(ctx, path); err != nil {
						return err
					}
					answers.Add(1)
				}
				return nil
			})
			return float64(answers.Load()) / time.Since(began).Seconds(), fmt.Sprintf("%d answers", answers.Load()), err
		})
	}
}

// written returns the bytes that the near hub writes for each event of a watch.
func (h *hubBench) written(ctx context.Context) (sample, error) {
	w, err := openWatch(ctx, h.clients[readerThrough], shardPath(smallShard))
	if err != nil {
		return sample{}, err
	}
	defer w.stop()
	if err := pause(ctx, settleWrites); err != nil {
		return sample{}, err
	}
	return h.observed(ctx, func(ctx context.Context) (float64, string, error) {
		before, err := metricOf(ctx, h.near.Observe, "atoll_hub_cache_written_bytes_total")
		if err != nil {
			return 0, "", err
		}
		if err := h.changeSmall(ctx, w); err != nil {
			return 0, "", err
		}
		if err := pause(ctx, settleWrites); err != nil {
			return 0, "", err
		}
		after, err := metricOf(ctx, h.near.Observe, "atoll_hub_cache_written_bytes_total")
		events, _ := w.size()
		return (after - before) / float64(events), fmt.Sprintf("%d events", events), err
	})
}

// settleWrites is the time in which everything is on disk: more than the second between two rounds
// of fsync.
const settleWrites = 2 * time.Second

// changeSmall changes the ConfigMaps of the small shard in turns, and waits for the last event.
func (h *hubBench) changeSmall(ctx context.Context, w *hubWatch) error {
	last := ""
	for i := range writtenChanges {
		var err error
		if last, err = h.changeConfig(ctx, fmt.Sprintf("%s-%d", smallShard, i%smallSize)); err != nil {
			return err
		}
	}
	_, err := w.await(ctx, last)
	return err
}

// eventSize returns the bytes of an event of the same watch.
func (h *hubBench) eventSize(ctx context.Context) (sample, error) {
	w, err := openWatch(ctx, h.clients[readerDirect], shardPath(smallShard))
	if err != nil {
		return sample{}, err
	}
	defer w.stop()
	return h.observed(ctx, func(ctx context.Context) (float64, string, error) {
		if err := h.changeSmall(ctx, w); err != nil {
			return 0, "", err
		}
		events, bytes := w.size()
		return float64(bytes) / float64(events), fmt.Sprintf("%d events", events), nil
	})
}

// syncs returns how often the near hub calls fsync a second while the ten shards change in turns.
func (h *hubBench) syncs(ctx context.Context) (s sample, err error) {
	shards := []string{smallShard}
	for i := range hubShards {
		shards = append(shards, shardName(i))
	}
	var watches []*hubWatch
	defer func() {
		for _, w := range watches {
			w.stop()
		}
	}()
	for _, shard := range shards {
		w, err := openWatch(ctx, h.clients[readerThrough], shardPath(shard))
		if err != nil {
			return s, err
		}
		watches = append(watches, w)
	}
	if err := pause(ctx, settleWrites); err != nil {
		return s, err
	}
	return h.observed(ctx, func(ctx context.Context) (float64, string, error) {
		const metric = "atoll_hub_cache_syncs_total"
		before, err := metricOf(ctx, h.near.Observe, metric)
		if err != nil {
			return 0, "", err
		}
		began, events := time.Now(), 0
		for ; time.Since(began) < syncsFor; events++ {
			if _, err := h.changeConfig(ctx, shards[events%len(shards)]+"-0"); err != nil {
				return 0, "", err
			}
		}
		after, err := metricOf(ctx, h.near.Observe, metric)
		return (after - before) / time.Since(began).Seconds(), fmt.Sprintf("%d events", events), err
	})
}

// starts returns the time from the start of the far hub to its first answer.
func (h *hubBench) starts(ctx context.Context) (sample, error) {
	h.link.Set(relay.Whole)
	if err := h.cluster.Kill(ctx, h.far.Name); err != nil {
		return sample{}, err
	}
	if err := h.waitIdle(ctx); err != nil {
		return sample{}, err
	}
	return h.observed(ctx, func(ctx context.Context) (float64, string, error) {
		began, started := time.Now(), make(chan error, 1)
		go func() { started <- h.cluster.Restart(ctx, h.far.Name) }()
		for {
			_, err := h.clients[farThrough].Skip(ctx, nodePath(farNode))
			took := time.Since(began)
			if err == nil {
				return milliseconds(took), "", <-started
			}
			if took > stepWithin || ctx.Err() != nil {
				return 0, "", errors.Join(err, <-started)
			}
			if err := pause(ctx, time.Millisecond); err != nil {
				return 0, "", errors.Join(err, <-started)
			}
		}
	})
}

// binary returns the size of the program.
func (h *hubBench) binary(context.Context) (sample, error) {
	info, err := os.Stat(h.near.Program)
	if err != nil {
		return sample{}, fmt.Errorf("reading the size of atoll-hub: %w", err)
	}
	return sample{rate: float64(info.Size()) / 1e6, off: -1}, nil
}

// metricOf reads a metric of a hub; name has its labels too.
func metricOf(ctx context.Context, observe, name string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+observe+"/metrics", nil)
	if err != nil {
		return 0, fmt.Errorf("reading the metrics of the hub: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, fmt.Errorf("reading the metrics of the hub: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, fmt.Errorf("reading the metrics of the hub: %w", err)
	}
	return metricIn(string(text), name)
}

// metricIn reads the value of a metric in the text format of Prometheus.
func metricIn(text, name string) (float64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("reading the metrics of the hub: there is no %s", name)
}
