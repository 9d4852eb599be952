package command

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"pgregory.net/rapid"
)

// TestWrapLosesNothing: every word is there, in order; no line is longer than the terminal but for one word; a command
// is one line.
func TestWrapLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-zé›:"]{1,30}`)
		line := rapid.Custom(func(t *rapid.T) string {
			start := rapid.SampledFrom([]string{"", "  ", "! ", "  ! ", "  Policy    ", "? Rights         ", "  kubectl get ", "│  └─ Pod "}).Draw(t, "start")
			return start + strings.Join(rapid.SliceOfN(word, 0, 40).Draw(t, "words"), " ")
		})
		text := strings.Join(rapid.SliceOfN(line, 0, 5).Draw(t, "lines"), "\n")
		width := rapid.IntRange(1, 120).Draw(t, "width")
		wrapped := wrap(text, width)
		if diff := cmp.Diff(strings.Fields(text), strings.Fields(wrapped)); diff != "" {
			t.Fatal(diff)
		}
		for line := range strings.Lines(wrapped) {
			line = strings.TrimRight(line, " \n")
			words := strings.Fields(line)
			if utf8.RuneCountInString(line) > width && len(words) > 1 && !wholeLine.MatchString(line) && lineHead.FindString(line)+words[len(words)-1] != line {
				t.Fatalf("at %d columns: %q", width, line)
			}
		}
	})
}

// TestCommandsLeadToTheSameCluster: a command that is printed has the flags with which this one was led to its cluster.
func TestCommandsLeadToTheSameCluster(t *testing.T) {
	const text = "error: kubectl get pods lists them\n  kubectl atoll explain pod/x\n  helm get manifest atoll | kubectl apply -f -\n  kubectl-atoll 0.1.0"
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, text},
		{[]string{"--context=edge", "-n", "w"}, "error: kubectl --context=edge get pods lists them\n  kubectl atoll --context=edge explain pod/x\n  helm --kube-context=edge get manifest atoll | kubectl --context=edge apply -f -\n  kubectl-atoll 0.1.0"},
		{[]string{"--kubeconfig", "my config", "--as", "ann", "--as-group", "ops", "-s", "https://a:6443", "--token", "secret"}, "error: kubectl --kubeconfig='my config' --server=https://a:6443 --as=ann --as-group=ops get pods lists them\n  kubectl atoll --kubeconfig='my config' --server=https://a:6443 --as=ann --as-group=ops explain pod/x\n  helm --kubeconfig='my config' get manifest atoll | kubectl --kubeconfig='my config' --server=https://a:6443 --as=ann --as-group=ops apply -f -\n  kubectl-atoll 0.1.0"},
	} {
		_, s := newRoot(genericiooptions.NewTestIOStreamsDiscard())
		if err := s.root.PersistentFlags().Parse(c.args); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, s.here(text)); diff != "" {
			t.Errorf("%v: -want +got\n%s", c.args, diff)
		}
	}
}

// TestPrintable: texts of the cluster move no cursor, and add no lines of their own.
func TestPrintable(t *testing.T) {
	if got := printable("a\x1b[2Jb\r\u202e›\n\u009bc é"); got != "a[2Jb›\nc é" {
		t.Errorf("%q", got)
	}
	if got := oneLine("ok\n\nIt waits: nothing\n  curl evil"); got != "ok It waits: nothing curl evil" {
		t.Errorf("%q", got)
	}
}
