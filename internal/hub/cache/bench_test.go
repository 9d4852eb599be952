package cache

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

func seeded(n uint64) *rand.Rand { return rand.New(rand.NewPCG(n, 1)) }

// items yields n items of a size.
func items(n, size int) func(func(string, []byte) bool) {
	value := make([]byte, size)
	r := seeded(1)
	for i := range value {
		value[i] = byte(r.Uint32())
	}
	return func(yield func(string, []byte) bool) {
		for i := range n {
			if !yield(fmt.Sprintf("namespace-%03d/pod-%06d", i%100, i), value) {
				return
			}
		}
	}
}

// go test -run '^$' -bench . ./internal/hub/cache
func BenchmarkOpen(b *testing.B) {
	for name, key := range benchKeys {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			s, err := Open(dir, Options{Key: key})
			must(b, err)
			_, err = s.Replace("k", nil, items(10_000, 4<<10))
			must(b, err)
			must(b, s.Close())
			b.ReportAllocs()
			var before, after runtime.MemStats
			for b.Loop() {
				b.StopTimer()
				runtime.GC()
				runtime.ReadMemStats(&before)
				b.StartTimer()
				s, err := Open(dir, Options{Key: key})
				must(b, err)
				b.StopTimer()
				runtime.GC()
				runtime.ReadMemStats(&after)
				must(b, s.Close())
				b.StartTimer()
			}
			b.ReportMetric(float64(after.HeapAlloc)-float64(before.HeapAlloc), "B-kept")
		})
	}
}

var benchKeys = map[string][]byte{"plain": nil, "encrypted": make([]byte, 32)}

// BenchmarkPut updates items of 4 kB in a scope of 1000, with all rewrites.
func BenchmarkPut(b *testing.B) {
	for name, key := range benchKeys {
		b.Run(name, func(b *testing.B) {
			real, err := openDirectory(b.TempDir())
			must(b, err)
			var written, syncs atomic.Int64
			s := openOn(b, &hooked{real, func(c call) (int, error) {
				switch c.op {
				case "Write":
					written.Add(int64(c.size))
				case "Sync", "SyncDir":
					syncs.Add(1)
				}
				return 0, nil
			}}, Options{Key: key})
			const count, size = 1000, 4 << 10
			w, err := s.Replace("k", []byte("1"), items(count, size))
			must(b, err)
			var ids []string
			var value []byte
			for id, v := range items(count, size) {
				ids, value = append(ids, id), v
			}
			written.Store(0)
			r := seeded(2)
			b.SetBytes(size)
			b.ReportAllocs()
			start := time.Now()
			for b.Loop() {
				must(b, w.Put(ids[r.IntN(count)], value, []byte("123456")))
			}
			b.ReportMetric(float64(written.Load())/float64(b.N), "B-written/op")
			b.ReportMetric(float64(written.Load())/float64(b.N)/size, "amplification")
			b.ReportMetric(float64(syncs.Load())/time.Since(start).Seconds(), "fsyncs/s")
		})
	}
}

// BenchmarkPutBesideViews has a view taken before each event of a scope with 10,000 items, so
// that each event copies the index.
func BenchmarkPutBesideViews(b *testing.B) {
	s, err := Open(b.TempDir(), Options{})
	must(b, err)
	defer s.Close()
	w, err := s.Replace("k", nil, items(10_000, 100))
	must(b, err)
	for b.Loop() {
		v, err := s.View("k")
		must(b, err)
		must(b, w.Put("namespace-050/pod-000050", make([]byte, 100), nil))
		must(b, v.Close())
	}
}

// BenchmarkReplace stores a list of 10,000 items of 4 kB.
func BenchmarkReplace(b *testing.B) {
	for name, key := range benchKeys {
		b.Run(name, func(b *testing.B) {
			s, err := Open(b.TempDir(), Options{Key: key})
			must(b, err)
			defer s.Close()
			b.SetBytes(10_000 * 4 << 10)
			b.ReportAllocs()
			for b.Loop() {
				_, err := s.Replace("k", nil, items(10_000, 4<<10))
				must(b, err)
			}
		})
	}
}

// BenchmarkRead reads a list of 10,000 items of 4 kB.
func BenchmarkRead(b *testing.B) {
	for name, key := range benchKeys {
		b.Run(name, func(b *testing.B) {
			s, err := Open(b.TempDir(), Options{Key: key})
			must(b, err)
			defer s.Close()
			_, err = s.Replace("k", nil, items(10_000, 4<<10))
			must(b, err)
			b.SetBytes(10_000 * 4 << 10)
			b.ReportAllocs()
			for b.Loop() {
				v, err := s.View("k")
				must(b, err)
				var buf []byte
				for i := range v.Len() {
					buf, err = v.Value(i, buf)
					must(b, err)
				}
				must(b, v.Close())
			}
		})
	}
}
