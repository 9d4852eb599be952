// kubectl-atoll tells people why their pods are where they are. It only reads, with the rights
// of the person who runs it.
package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/go-logr/logr"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // what kubeconfigs may name
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/cmd/kubectl-atoll/command"
)

func main() {
	klog.SetLogger(logr.Discard()) // the verbs print what people must know
	log.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once, also if a request hangs
	code := command.Main(ctx, genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}, os.Args[1:])
	stop()
	os.Exit(code)
}
