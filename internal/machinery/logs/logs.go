// Package logs bounds the entries of the log: their size, and what they contain. It depends
// on no kind.
//
// Messages of the API server and names that users chose are part of many entries. A refused
// object may be quoted with all its fields, and a text may contain characters that change
// what a terminal shows. So texts are cut, and characters that do not show are replaced; an
// object is logged by its name only, because it may have secrets.
package logs

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"reflect"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

const (
	// maxMessage and maxValue bound the message and each value of an entry, in bytes. A
	// value may be the stack of a panic.
	maxMessage, maxValue = 1000, 8000
	// maxEntry bounds all values of one call together. minValue is what each gets
	// nevertheless, so that an entry is never without its last values.
	maxEntry, minValue = 16000, 200
)

// Bound returns a logger that writes bounded entries through another one.
func Bound(l logr.Logger) logr.Logger { return l.WithSink(&sink{LogSink: l.GetSink()}) }

// Redirect makes a logger get what libraries write to the standard logger and to klog, which
// otherwise write text that is not bounded.
func Redirect(l logr.Logger) {
	klog.SetLogger(l.WithName("klog"))
	log.SetFlags(0)
	log.SetOutput(standard{l.WithName("log")})
}

// standard writes entries of the standard logger, which net/http uses.
type standard struct{ logr.Logger }

func (s standard) Write(p []byte) (int, error) {
	text := strings.TrimSpace(string(p))
	l := s.Logger
	if strings.HasPrefix(text, "http: TLS handshake error") { // anybody who reaches the port can cause it
		l = l.V(2)
	}
	l.Info("Message of a library", "text", text)
	return len(p), nil
}

// sink bounds the entries of another sink.
type sink struct{ logr.LogSink }

// Init does nothing: the other sink was initialized with its own logger.
func (s *sink) Init(logr.RuntimeInfo) {}

// Info implements logr.LogSink.
func (s *sink) Info(level int, message string, pairs ...any) {
	s.LogSink.Info(level, conditions.Truncate(conditions.Printable(message), maxMessage), values(pairs)...)
}

// Error implements logr.LogSink.
func (s *sink) Error(err error, message string, pairs ...any) {
	if err != nil {
		err = errors.New(bounded(err.Error(), maxValue))
	}
	s.LogSink.Error(err, conditions.Truncate(conditions.Printable(message), maxMessage), values(pairs)...)
}

// WithValues implements logr.LogSink.
func (s *sink) WithValues(pairs ...any) logr.LogSink {
	return &sink{LogSink: s.LogSink.WithValues(values(pairs)...)}
}

// WithName implements logr.LogSink.
func (s *sink) WithName(name string) logr.LogSink {
	return &sink{LogSink: s.LogSink.WithName(name)}
}

// values returns a bounded copy of keys and values.
func values(pairs []any) []any {
	out := make([]any, len(pairs))
	left := maxEntry
	for i, v := range pairs {
		if i%2 == 0 {
			out[i] = v // keys are constants
			continue
		}
		limit := max(minValue, min(maxValue, left))
		var size int
		out[i], size = value(v, limit)
		left -= size
	}
	return out
}

// object is what is logged of an object.
type object struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name,omitempty"`
}

// value returns the bounded form of a value, and its size in bytes if it is a text.
func value(v any, limit int) (out any, size int) {
	switch v := v.(type) {
	case nil, bool, int, int32, int64, uint32, uint64, float64, time.Duration, time.Time:
		return v, 0
	case string:
		text := bounded(v, limit)
		return text, len(text)
	case error:
		text := bounded(v.Error(), limit)
		return errors.New(text), len(text)
	case logr.Marshaler:
		return value(v.MarshalLog(), limit)
	case runtime.Object:
		return value(named(v), limit)
	case fmt.Stringer:
		text := bounded(fmt.Sprint(v), limit)
		return text, len(text)
	}
	if text := reflect.ValueOf(v); text.Kind() == reflect.String { // such as a UID
		return value(text.String(), limit)
	}
	encoded, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%T", v), 0
	}
	// A list or map with texts that do not show becomes one text, with the escapes of JSON.
	if text := bounded(string(encoded), limit); text != string(encoded) || strings.Contains(text, `\u00`) {
		return text, len(text)
	}
	return v, len(encoded)
}

// named returns the name of an object, or its type if it has none.
func named(o runtime.Object) any {
	m, err := meta.Accessor(o)
	if err != nil {
		return fmt.Sprintf("%T", o)
	}
	apiVersion, kind := o.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	if kind == "" {
		kind = fmt.Sprintf("%T", o)
	}
	return object{APIVersion: apiVersion, Kind: kind, Namespace: m.GetNamespace(), Name: m.GetName()}
}

// bounded cuts a text and replaces what does not show. Line breaks stay: both encoders of
// zap escape them in values.
func bounded(text string, limit int) string {
	lines := strings.Split(conditions.Truncate(text, 4*limit), "\n")
	for i := range lines {
		lines[i] = conditions.Printable(lines[i])
	}
	return conditions.Truncate(strings.Join(lines, "\n"), limit)
}
