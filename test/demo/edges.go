package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/test/relay"
)

// fieldSpec is the node of the scene.
var fieldSpec = devcluster.NodeSpec{Name: fieldNode, Labels: map[string]string{"site": field}}

// realEdge is a real node.
type realEdge struct {
	*devcluster.Cluster

	hub *devcluster.Gateway
	// args are those of the hub on the node.
	args []string
}

func newRealEdge(ctx context.Context, c *devcluster.Cluster, log io.Writer) (*realEdge, error) {
	hub, err := atoll.NewHub(ctx, log)
	if err != nil {
		return nil, err
	}
	e := &realEdge{Cluster: c, hub: hub}
	configure := hub.Configure
	hub.Configure = func(v devcluster.GatewayValues) (args []string, config []byte) {
		e.args, config = configure(v)
		return e.args, config
	}
	return e, c.AddRealNodes(ctx, devcluster.RealNodeSpec{
		NodeSpec: fieldSpec, Pool: field, Gateway: hub,
		Kubelet: map[string]any{"nodeLeaseDurationSeconds": 8}, // renewed every 2 s
	})
}

func (e *realEdge) cut(ctx context.Context, cut bool) error {
	return e.SetLeg(ctx, fieldNode, devcluster.Cloud, devcluster.LegState{Cut: cut})
}

func (e *realEdge) programs() []string { return []string{devcluster.Kubelet, atoll.Hub} }

func (e *realEdge) restart(ctx context.Context, programs ...string) error {
	for _, program := range programs {
		if err := e.KillOn(ctx, fieldNode, program); err != nil {
			return err
		}
	}
	for _, program := range programs {
		if err := e.RestartOn(ctx, fieldNode, program); err != nil {
			return err
		}
	}
	return nil
}

func (e *realEdge) status(ctx context.Context) (string, error) {
	return e.RunOn(ctx, fieldNode, e.hub.Path, append(e.args, "status")...)
}

// kubeletHealth is where the kubelet of a real node says, on the node, whether it has synchronised
// its pods.
const kubeletHealth = "http://127.0.0.1:10248/healthz"

// ask asks the container, which answers with a line for each time that it was started, once the
// kubelet is healthy.
func (e *realEdge) ask(ctx context.Context, address string) (string, error) {
	get := filepath.Join(e.Dir(), "bin", "devcluster-pause")
	health, err := e.RunOn(ctx, fieldNode, get, "get", kubeletHealth)
	if err == nil && health != "ok" {
		err = fmt.Errorf("the kubelet says %q of its health", health)
	}
	if err != nil {
		return "", err
	}
	out, err := e.RunOn(ctx, fieldNode, get, "get", "http://"+address+":8080")
	return strings.TrimSpace(out), err
}

func (e *realEdge) close() {}

// hollowEdge is a hollow kubelet behind a hub that is a process of this machine.
type hollowEdge struct {
	*devcluster.Cluster

	hub  *atoll.HubProcess
	link *relay.Relay
	// node asks the hub with the certificate of the node.
	node kubernetes.Interface
}

func newHollowEdge(ctx context.Context, c *devcluster.Cluster, log io.Writer) (*hollowEdge, error) {
	link, err := relay.New(ctx, strings.TrimPrefix(c.AdminConfig().Host, "https://"))
	if err != nil {
		return nil, err
	}
	e := &hollowEdge{Cluster: c, link: link}
	if err := e.add(ctx, log); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *hollowEdge) add(ctx context.Context, log io.Writer) (err error) {
	if e.hub, err = atoll.StartHub(ctx, e.Cluster, fieldNode, "https://"+e.link.Address(), log); err != nil {
		return err
	}
	kubeconfig, err := e.Kubeconfig(ctx, "system:node:"+fieldNode, "system:nodes")
	if err != nil {
		return err
	}
	if kubeconfig, err = devcluster.Behind(kubeconfig, e.hub.Endpoint); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig of node %q: %w", fieldNode, err)
	}
	if e.node, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	return e.AddHollowNodesBehind(ctx, e.hub.Endpoint, fieldSpec)
}

func (e *hollowEdge) cut(_ context.Context, cut bool) error {
	if cut {
		e.link.Set(relay.Silent)
	} else {
		e.link.Set(relay.Whole)
	}
	return nil
}

func (e *hollowEdge) programs() []string { return []string{atoll.Hub} }

func (e *hollowEdge) restart(ctx context.Context, _ ...string) error {
	return e.Restart(ctx, e.hub.Name)
}

func (e *hollowEdge) status(ctx context.Context) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, e.hub.Program, "--config="+e.hub.ConfigFile, "status")
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("running atoll-hub status: %w: %s", err, errs.Bytes())
	}
	return out.String(), nil
}

// ask asks the hub what a kubelet asks, which pods are to run.
func (e *hollowEdge) ask(ctx context.Context, _ string) (string, error) {
	pods, err := e.node.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + fieldNode})
	if err != nil {
		return "", fmt.Errorf("asking the hub for the pods of the node: %w", err)
	}
	var names []string
	for i := range pods.Items {
		names = append(names, pods.Items[i].Namespace+"/"+pods.Items[i].Name)
	}
	return strings.Join(names, ", "), nil
}

func (e *hollowEdge) close() { _ = e.link.Close() }
