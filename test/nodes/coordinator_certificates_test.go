package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

// secret returns a Secret of coordinators.
func (r *poolRig) secret(name string) *corev1.Secret {
	r.Helper()
	s := &corev1.Secret{}
	if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: "atoll-pools", Name: name}, s); err != nil {
		r.Fatal(err)
	}
	return s
}

// pass updates a Secret, and lets the manager look: it does not watch Secrets.
func (r *poolRig) pass(s *corev1.Secret) {
	r.Helper()
	if err := r.client.Update(r.Context(), s); err != nil {
		r.Fatal(err)
	}
	r.kubectl("annotate", "yurtcoordinator", "edge", "changed="+s.ResourceVersion, "--overwrite")
}

// follow runs kubectl as people do on a node. end returns what it has printed, and fails the test if it has ended before.
func (r *poolRig) follow(node string, args ...string) (end func() string) {
	r.Helper()
	file := filepath.Join(r.T.TempDir(), "out")
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan error, 1)
	command := strings.Join(append([]string{"exec", r.BinaryPath("kubectl"), "--kubeconfig=" + r.kubeconfig}, args...), " ")
	go func() {
		_, err := r.RunOn(ctx, node, "/bin/sh", "-c", command+" >"+file+" 2>&1")
		done <- err
	}()
	r.eventually("kubectl "+strings.Join(args, " ")+" begins", func() error {
		if text, err := os.ReadFile(file); err != nil || len(text) == 0 {
			return fmt.Errorf("it prints nothing, %w", err)
		}
		return nil
	})
	return func() string {
		r.Helper()
		text, err := os.ReadFile(file)
		select {
		case ended := <-done:
			r.Errorf("kubectl %s has ended: %v; it prints %s", strings.Join(args, " "), ended, text)
		default:
		}
		cancel()
		if err != nil {
			r.Error(err)
		}
		return string(text)
	}
}

// testNewCertificate: the manager makes another serving certificate, as after two thirds of its life. The API server
// shows it, and no client is dropped.
func (r *poolRig) testNewCertificate() {
	from := r.other()
	watch, logs := r.follow(from, "get", "pods", "-n", "default", "--watch", "--show-labels"), r.follow(from, "logs", "-f", "web-"+r.on)
	pod := r.podOfCoordinator()
	s := r.secret("coordinator-edge")
	was := s.Data["tls.crt"]
	delete(s.Data, "tls.crt")
	r.pass(s)
	began := time.Now()
	var is []byte
	r.eventually("there is another certificate", func() error {
		if is = r.secret("coordinator-edge").Data["tls.crt"]; len(is) == 0 || bytes.Equal(is, was) {
			return errors.New("there is none")
		}
		return nil
	})
	file := filepath.Join(r.T.TempDir(), "tls.crt")
	if err := os.WriteFile(file, is, 0o600); err != nil {
		r.Fatal(err)
	}
	r.eventually("the API server shows it", func() error {
		_, err := r.people(from, "--certificate-authority="+file, "get", "nodes") // it trusts this certificate only
		return err
	})
	r.Logf("the API server shows its new certificate after %s", time.Since(began).Round(100*time.Millisecond))
	r.kubectl("label", "pod", "web-"+from, "certificate=another", "--overwrite")
	r.sees(from, poolNodes...)
	r.eventually("the hub of "+from+" is up to date", func() error { return r.upToDate(from, "") })
	r.eventually("people see a change", func() error {
		out, err := r.people(from, "get", "pod", "web-"+from, "--show-labels")
		if err == nil && !strings.Contains(out, "certificate=another") {
			err = errors.New(out)
		}
		return err
	})
	if out, err := r.people(from, "exec", "web-"+r.on, "--", "/pause", "get", "http://127.0.0.1:8080"); err != nil {
		r.Errorf("exec: %s, %v", out, err)
	}
	logs()
	if out := watch(); !strings.Contains(out, "certificate=another") {
		r.Errorf("the watch that was open before prints %s", out)
	}
	if now := r.podOfCoordinator(); now.UID != pod.UID || restarts(now) != restarts(pod) {
		r.Errorf("the pod %s was restarted, or is another one", pod.Name)
	}
}

// podOfCoordinator returns the pod of the coordinator, once there is one that does not end.
func (r *poolRig) podOfCoordinator() *corev1.Pod {
	r.Helper()
	var pod *corev1.Pod
	r.eventually("there is one pod of the coordinator", func() error {
		pods := r.pods("atoll-pools", "")
		if len(pods) != 1 || pods[0].DeletionTimestamp != nil {
			return fmt.Errorf("there are %d", len(pods))
		}
		pod = &pods[0]
		return nil
	})
	return pod
}

// restarts returns how often containers of a pod were started again.
func restarts(pod *corev1.Pod) (n int32) {
	for _, s := range pod.Status.ContainerStatuses {
		n += s.RestartCount
	}
	return n
}

// testNextCA: the CA of the pool is old. The next one is trusted beside it, and later signs. Each time the pod is made
// anew; a kubeconfig from before goes on at the new one.
func (r *poolRig) testNextCA() {
	now := time.Now()
	// older replaces a CA of the Secret by one with the same key, which began days ago.
	older := func(data map[string][]byte, cert, key string, days int) {
		r.Helper()
		day := 24 * time.Hour
		pair, err := certs.NewCAFor(data[key], certs.Period{From: now.Add(-time.Duration(days) * day), To: now.Add(time.Duration(365-days) * day)})
		if err != nil {
			r.Fatal(err)
		}
		data[cert] = pair.Cert
	}
	step := func(what string, change func(data map[string][]byte), want func(data map[string][]byte) error) {
		r.Helper()
		kept, pod := r.with(r.keptKubeconfig()), r.podOfCoordinator()
		s := r.secret("ca-edge")
		change(s.Data)
		r.pass(s)
		r.eventually(what, func() error { return want(r.secret("ca-edge").Data) })
		r.eventually("the pod is another one", func() error {
			if now := r.podOfCoordinator(); now.UID == pod.UID {
				return errors.New("it is the same")
			}
			return nil
		})
		r.isReady("")
		address := r.address()
		r.eventually("a kubeconfig from before goes on", func() error {
			_, err := kept.people(r.on, "--server=https://"+address+":10270", "get", "nodes")
			return err
		})
		for _, node := range poolNodes {
			r.eventually("the hub of "+node+" is up to date", func() error { return r.upToDate(node, address) })
			r.use(what+",", r.on, node)
		}
	}
	step("the next CA is trusted", func(data map[string][]byte) { older(data, "ca.crt", "ca.key", 300) }, func(data map[string][]byte) error {
		if bytes.Count(data["ca.crt"], []byte("BEGIN CERTIFICATE")) != 2 || len(data["next.key"]) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	next := r.secret("ca-edge").Data["next.key"]
	step("the next CA signs", func(data map[string][]byte) { older(data, "next.crt", "next.key", 31) }, func(data map[string][]byte) error {
		if !bytes.Equal(data["ca.key"], next) || bytes.Count(data["ca.crt"], []byte("BEGIN CERTIFICATE")) != 2 {
			return errors.New("it does not")
		}
		return nil
	})
}

// testFull uploads versions of a large pod, as the node, until the etcd in the pod is full, and goes on.
func (r *poolRig) testFull() {
	if _, err := os.Stat("/usr/bin/curl"); err != nil {
		r.Skip("this needs curl: ", err)
	}
	from, dir, pod := r.other(), r.T.TempDir(), r.podOfCoordinator()
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "ca.crt"), r.secret("coordinator-edge").Data["ca.crt"], 0o600),
		os.WriteFile(filepath.Join(dir, "pod.json"), fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"default","name":"large","uid":"large","resourceVersion":"VERSION","annotations":{"large":%q}},"spec":{"nodeName":%q}}`,
			strings.Repeat("a", 900<<10), from), 0o600),
	); err != nil {
		r.Fatal(err)
	}
	began := time.Now()
	// A node has one request at a time, so its hub may be in between.
	out, err := r.RunOn(r.Context(), from, "/bin/sh", "-c", strings.NewReplacer("DIR", dir, "SERVER", r.address()+":10271").Replace(`
cd DIR
touch busy
version=1 full=0 after=0 uploaded=0
while [ $after -lt 20 ]; do
	if [ $version -gt 2000 ]; then echo etcd is never full; exit 1; fi
	sed s/VERSION/$version/ pod.json >body
	code=$(curl --silent --max-time 60 --cacert ca.crt --cert /run/node/node.pem --key /run/node/node.pem --request PUT --data-binary @body --output answer --write-out '%{http_code}' https://SERVER/v1/objects/pods/default/large)
	case $code in
	200) uploaded=$((uploaded+1)); if [ $full -gt 0 ]; then after=$((after+1)); fi ;;
	507) full=$((full+1)); cat answer ;;
	503) echo "$(cat answer)" >>busy ;;
	*) echo "$code: $(cat answer)"; exit 1 ;;
	esac
	version=$((version+1))
done
echo "$uploaded versions were uploaded, and etcd was full $full times"
sort busy | uniq -c
`))
	if err != nil {
		r.Fatal(err)
	}
	r.Logf("after %s: %s", time.Since(began).Round(100*time.Millisecond), out)
	if !strings.Contains(out, "etcd was full, and what was there before was removed") {
		r.Errorf("it was not full: %s", out)
	}
	for _, node := range poolNodes {
		r.eventually("the hub of "+node+" is up to date", func() error { return r.upToDate(node, "") })
	}
	r.sees(from, poolNodes...)
	r.eventually("what the node does not have goes", func() error {
		out, err := r.people(from, "get", "pods", "-n", "default")
		if err == nil && strings.Contains(out, "large") {
			err = errors.New(out)
		}
		return err
	})
	r.kubectl("label", "pod", "web-"+from, "full=no", "--overwrite")
	r.eventually("people see a change", func() error {
		out, err := r.people(from, "get", "pod", "web-"+from, "--show-labels")
		if err == nil && !strings.Contains(out, "full=no") {
			err = errors.New(out)
		}
		return err
	})
	if now := r.podOfCoordinator(); now.UID != pod.UID || restarts(now) != restarts(pod) {
		r.Errorf("the pod %s was restarted, or is another one", pod.Name)
	}
}
