package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// newLogger returns the logger of atoll-manager, and where it writes.
func newLogger(development bool) (logr.Logger, *bytes.Buffer) {
	var out bytes.Buffer
	return Bound(zap.New(zap.UseFlagOptions(&zap.Options{Development: development, DestWriter: &out}))), &out
}

// huge is the answer of the API server to an object that it refuses.
func huge() error {
	text := strings.Repeat("ä\x1b[2J", 1<<18)
	return apierrors.NewInvalid(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "web",
		field.ErrorList{field.Invalid(field.NewPath("spec", "template"), text, "is refused"), field.Invalid(field.NewPath("spec"), text, "is refused")})
}

// certificate is an object that may not be in the log.
func certificate() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "atoll-system", Name: "tls"}, Data: map[string][]byte{"key": []byte("hush")}, StringData: map[string]string{"key": "hush"}}
}

// TestEntriesAreBoundedAndPrintable: whatever is logged, an entry is one line of bounded
// length in both encodings, without characters that a terminal would obey.
func TestEntriesAreBoundedAndPrintable(t *testing.T) {
	evil := "tenant\x1b[31m\u202e\x7f" + strings.Repeat("x", 1<<20)
	tests := map[string]func(logr.Logger){
		"an error of the API server":  func(l logr.Logger) { l.Error(huge(), "Writing failed") },
		"several errors":              func(l logr.Logger) { l.Error(utilerrors.NewAggregate([]error{huge(), huge()}), "Writing failed") },
		"a wrapped error":             func(l logr.Logger) { l.Error(fmt.Errorf("writing: %w", errors.Join(huge(), huge())), "Writing failed") },
		"an error as a value":         func(l logr.Logger) { l.Info("Waits", "why", huge()) },
		"texts":                       func(l logr.Logger) { l.Info("Waits", "a", evil, "b", evil, "c", evil, "d", evil, "e", evil) },
		"a short list":                func(l logr.Logger) { l.Info("Waits", "names", []string{"a", "\x1b[2J", "\u202e"}) },
		"a list":                      func(l logr.Logger) { l.Info("Waits", "names", []string{evil, evil}) },
		"a map":                       func(l logr.Logger) { l.Info("Waits", "labels", map[string]string{"a": evil}) },
		"bytes":                       func(l logr.Logger) { l.Info("Waits", "body", []byte(evil)) },
		"a message with a text in it": func(l logr.Logger) { l.Info("a\nb " + evil) },
		"a name":                      func(l logr.Logger) { l.Info("Waits", "pod", types.NamespacedName{Namespace: evil, Name: evil}) },
		"a type of text":              func(l logr.Logger) { l.Info("Waits", "uid", types.UID(evil)) },
		"values of the logger":        func(l logr.Logger) { l.WithName("a").WithValues("uid", evil, "why", huge()).Info("Waits") },
		"an object": func(l logr.Logger) {
			l.Info("Waits", "secret", certificate(), "pod", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{"a": evil}}})
		},
		"objects": func(l logr.Logger) {
			l.Info("Waits", "secrets", &corev1.SecretList{Items: []corev1.Secret{*certificate()}})
		},
	}
	for name, write := range tests {
		for _, development := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, development %t", name, development), func(t *testing.T) {
				l, out := newLogger(development)
				write(l)
				entry := strings.TrimSuffix(out.String(), "\n")
				first, _, _ := strings.Cut(entry, "\n") // a stack of our own code may follow
				if !development && first != entry {
					t.Errorf("the entry has several lines: %.300q", entry)
				}
				if first == "" || len(entry) > 2*(maxEntry+maxValue) {
					t.Errorf("the entry has %d bytes", len(entry))
				}
				if strings.ContainsAny(first, "\x1b\u202e\x7f") || strings.Contains(strings.ReplaceAll(first, `\\`, ""), `\u001b`) {
					t.Errorf("the entry has control characters: %.300q", first)
				}
				if strings.Contains(entry, "hush") || strings.Contains(entry, "aHVzaA") {
					t.Errorf("the entry has a secret: %s", entry)
				}
				if !development && !json.Valid([]byte(entry)) {
					t.Errorf("the entry is not valid JSON: %.300q", entry)
				}
			})
		}
	}
}

// TestOrdinaryEntriesStay: what is short and printable is logged as without this package.
func TestOrdinaryEntriesStay(t *testing.T) {
	l, out := newLogger(false)
	l.WithName("nodepool").WithValues("pool", "hangzhou").Error(errors.New("no answer"), "Writing failed",
		"nodes", []string{"a", "ä"}, "count", 3, "stack", "line\nline", "secret", certificate(), "error", errors.New("again"), "pod", types.NamespacedName{Namespace: "ns", Name: "p"})
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"logger": "nodepool", "pool": "hangzhou", "msg": "Writing failed", "nodes": "[a ä]", "count": "3", "stack": "line\nline",
		"secret": "map[kind:*v1.Secret name:tls namespace:atoll-system]", "level": "error", "pod": "map[name:p namespace:ns]",
	} {
		if fmt.Sprint(got[key]) != want {
			t.Errorf("%s is %v, want %s", key, got[key], want)
		}
	}
	if !strings.Contains(out.String(), `"error":"no answer"`) {
		t.Errorf("the error is missing: %s", out)
	}
}

// TestLibrariesWriteBoundedEntries: klog and the standard logger have a format of their own.
func TestLibrariesWriteBoundedEntries(t *testing.T) {
	flags, writer := log.Flags(), log.Writer()
	t.Cleanup(func() {
		klog.ClearLogger()
		log.SetFlags(flags)
		log.SetOutput(writer)
	})
	l, out := newLogger(false)
	Redirect(l)
	klog.Errorf("refused: %v", huge())
	klog.ErrorS(huge(), "Server rejected event", "event", certificate())
	log.Printf("http: panic serving: %v", huge())
	log.Print("http: TLS handshake error from 10.0.0.1:7: EOF")
	klog.Flush()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d entries were written, want 3 and none about the handshake", len(lines))
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) || len(line) > 2*maxValue || strings.Contains(line, "hush") {
			t.Errorf("the entry has %d bytes: %.300q", len(line), line)
		}
	}
}
