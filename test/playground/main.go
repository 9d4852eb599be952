// Command playground starts a cluster with Atoll to try things on, and stops it.
//
//	make up      # Atoll as the chart installs it, simulated nodes, the examples' groups and pools
//	make up ARGS=-form=Isolated
//	make up ARGS=-kubernetes=1.34
//	make up ARGS=-real-nodes=3    # containers that run, and Atoll in pods: docs/real-nodes.md
//	make down
//
// The cluster runs until make down, also after the command has ended.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/devcluster/binaries"
)

// name is the name of the cluster: there is at most one playground on a machine.
var name = "playground"

const (
	rootModule = "github.com/atoll-k8s/atoll"
	// within bounds the time of the installation, including the objects that are added
	// afterwards.
	within = 5 * time.Minute
)

// sites have nodes that the examples' groups and pools select.
var sites = []struct {
	name  string
	nodes int
}{{"hangzhou", 2}, {"beijing", 3}}

// classLabel is the node label for on-demand and spot nodes: docs/capacity.md.
const classLabel = "node.kubernetes.io/capacity"

// class returns the class of the node of a site with this index, from 0: one node is
// on-demand.
func class(i int) string {
	if i == 0 {
		return "on-demand"
	}
	return "spot"
}

// made are the examples that are applied at the start.
var made = []string{"examples/groups/01-nodegroups.yaml", "examples/pools/01-nodepools.yaml"}

func main() {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(1)
	}
}

// request is what the command line asks for, or what runs.
type request struct {
	form atoll.Form
	// real is the number of real nodes. 0 means simulated nodes.
	real int
	// kubernetes is the version of the cluster.
	kubernetes string
	// given has the names of the flags on the command line.
	given map[string]bool
}

func run(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("playground", flag.ContinueOnError)
	form := fs.String("form", string(atoll.Default), "form in which Atoll is installed: Pinned, Isolated or Plain (docs/scheduler.md)")
	real := fs.Int("real-nodes", 0, fmt.Sprintf("number of real nodes, at most %d, instead of simulated ones; needs Linux, root, TUN devices and a C compiler (docs/real-nodes.md)", maxRealNodes))
	version := fs.String("kubernetes", "", "version of Kubernetes: "+strings.Join(binaries.KubernetesVersions, ", ")+" or the first two numbers of one (default: that of $"+binaries.KubernetesEnv+", or else the first)")
	down := fs.Bool("down", false, "stop the playground instead")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *down {
		if err := devcluster.Remove(ctx, name); err != nil {
			return err
		}
		fmt.Println("The playground is stopped.")
		return nil
	}
	chosen, err := atoll.ParseForm(*form)
	if err != nil {
		return err
	}
	asked, err := binaries.FindKubernetes(*version)
	if err != nil {
		return err
	}
	r := request{chosen, *real, asked, map[string]bool{}}
	fs.Visit(func(f *flag.Flag) { r.given[f.Name] = true })
	if r.real < 0 || r.real > maxRealNodes {
		return fmt.Errorf("-real-nodes=%d: it is a number from 1 to %d, or 0 for simulated nodes", r.real, maxRealNodes)
	}
	return up(ctx, r)
}

// up starts the playground, or prints the usage of the one that runs. It fails if that runs
// otherwise than the flags say.
func up(ctx context.Context, r request) error {
	infos, err := devcluster.List()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(infos, func(info devcluster.Info) bool { return info.Name == name }) {
		return usageOfRunning(ctx, r)
	}
	if r.real > 0 {
		if err := refuseReal(r); err != nil {
			return err
		}
	}
	cluster, err := devcluster.Start(ctx, devcluster.Options{
		Name: name, Kubernetes: r.kubernetes, Persistent: true, PodStartDelay: time.Second, Log: os.Stderr, RealNodes: r.real > 0,
	})
	if err != nil {
		return err
	}
	if err := furnish(ctx, cluster, r); err != nil {
		return errors.Join(err, cluster.Stop(context.WithoutCancel(ctx)))
	}
	fmt.Printf("\nAtoll runs in the form %s, on a cluster of %s with Kubernetes %s.\n", r.form, nodesText(r.real), r.kubernetes)
	return usage(ctx, cluster, r.real)
}

// usageOfRunning prints the usage of the playground that runs.
func usageOfRunning(ctx context.Context, r request) error {
	cluster, err := devcluster.Attach(ctx, name)
	if err != nil {
		return err
	}
	form, err := formOf(ctx, cluster)
	if err != nil {
		return err
	}
	if r.given["form"] && form != r.form {
		return fmt.Errorf("the playground runs in the form %s, not %s: stop it with make down first", form, r.form)
	}
	real, err := countReal(ctx, cluster)
	if err != nil {
		return err
	}
	if r.given["real-nodes"] && real != r.real {
		return fmt.Errorf("the playground runs on %s, not on %s: stop it with make down first", nodesText(real), nodesText(r.real))
	}
	if r.given["kubernetes"] && cluster.KubernetesVersion() != r.kubernetes {
		return fmt.Errorf("the playground runs Kubernetes %s, not %s: stop it with make down first", cluster.KubernetesVersion(), r.kubernetes)
	}
	fmt.Printf("The playground runs already, in the form %s, on %s with Kubernetes %s; make down stops it.\n", form, nodesText(real), cluster.KubernetesVersion())
	return usage(ctx, cluster, real)
}

// formOf returns the form in which Atoll is installed, from the objects that the chart
// rendered.
func formOf(ctx context.Context, cluster *devcluster.Cluster) (atoll.Form, error) {
	client, err := kubernetes.NewForConfig(cluster.AdminConfig())
	if err != nil {
		return "", fmt.Errorf("making a client: %w", err)
	}
	maps, err := client.CoreV1().ConfigMaps(atoll.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("finding the form of the playground: %w", err)
	}
	for i := range maps.Items {
		switch maps.Items[i].Name {
		case "atoll-scheduler":
			return atoll.Isolated, nil
		case "atoll-kube-scheduler":
			return atoll.Plain, nil
		}
	}
	return atoll.Pinned, nil
}

// furnish installs Atoll and adds nodes, groups and pools.
func furnish(ctx context.Context, cluster *devcluster.Cluster, r request) error {
	add := furnishSimulated
	if r.real > 0 {
		add = furnishReal
	}
	if err := add(ctx, cluster, r); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	root, err := source(ctx)
	if err != nil {
		return err
	}
	for _, file := range made {
		cmd := exec.CommandContext(ctx, cluster.BinaryPath("kubectl"), "apply", "-f", filepath.Join(root, file))
		cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.KubeconfigPath())
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("applying %s: %w", file, err)
		}
	}
	return nil
}

// source returns the directory of the root module.
func source(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", rootModule).Output()
	if err != nil {
		return "", fmt.Errorf("finding the source of module %s: %w", rootModule, err)
	}
	return strings.TrimSpace(string(root)), nil
}

// furnishSimulated runs atoll-manager beside the cluster, and adds simulated nodes.
func furnishSimulated(ctx context.Context, cluster *devcluster.Cluster, r request) error {
	if _, err := atoll.Install(ctx, cluster, atoll.Options{Form: r.form, Gangs: true, Within: within, Log: os.Stderr}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for _, s := range sites {
		specs := devcluster.NumberedNodes(s.name+"-", s.nodes, func(i int, spec *devcluster.NodeSpec) {
			spec.Labels = labels(s.name, i)
		})
		if err := cluster.AddNodes(ctx, specs...); err != nil {
			return err
		}
	}
	return nil
}

// labels returns those of the node of a site with this index, from 0.
func labels(site string, i int) map[string]string {
	return map[string]string{"location": site, apps.NodePoolLabel: site, classLabel: class(i)}
}

// usage prints how to use the playground.
func usage(ctx context.Context, cluster *devcluster.Cluster, real int) error {
	root, err := source(ctx)
	if err != nil {
		return err
	}
	fmt.Printf(`
  export KUBECONFIG=%s
  export PATH=%s:%s:$PATH        # kubectl atoll, and kubectl of the cluster's version; yours will do

  kubectl get nodegroups,nodepools
  kubectl apply -f examples/groups/deployment.yaml -f examples/groups/02-policies.yaml
  kubectl label deployment nginx groupmanagement.kubeedge.io/required-propagationpolicy=nginx-propagationpolicy groupmanagement.kubeedge.io/required-overridepolicy=nginx-overridepolicy
  kubectl atoll explain deployment/nginx
  kubectl atoll plan -f examples/policy-numrange.yaml
  kubectl apply -f examples/pools/02-uniteddeployment.yaml
  kubectl apply -f examples/capacity/deployments.yaml
  kubectl get capacitysplits
  kubectl apply -f examples/gangs/rules.yaml -f examples/gangs/deployment.yaml
  kubectl get podgroups        # no Volcano runs here: their pods stay Pending
`, cluster.KubeconfigPath(), filepath.Join(root, "bin"), filepath.Dir(cluster.BinaryPath("kubectl")))
	if real > 0 {
		fmt.Print(usageOfReal)
	}
	fmt.Print("\n  make down        # when done\n")
	return nil
}
