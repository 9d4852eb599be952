package main

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// lives watches that pods live that should. It is safe for concurrent use.
type lives struct {
	mu sync.Mutex
	// deleted are the pods that the soak itself deletes, by namespace and name: no name is used twice.
	deleted map[string]bool
	// restarts are the times at which a kubelet was started again, by node.
	restarts map[string][]time.Time
	pods     map[types.UID]*life
}

// life is what is known of a pod.
type life struct {
	// started is when its container was started, in each life of its kubelet: a hollow kubelet loses
	// its containers when it ends.
	started map[int]time.Time
	// running is true if the pod was seen to run.
	running bool
}

func newLives() *lives {
	return &lives{deleted: map[string]bool{}, restarts: map[string][]time.Time{}, pods: map[types.UID]*life{}}
}

// delete notes that a pod may end from now on.
func (l *lives) delete(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deleted[name] = true
}

// restart notes that the kubelet of a node is started again.
func (l *lives) restart(node string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The API's times have seconds.
	l.restarts[node] = append(l.restarts[node], at.Truncate(time.Second))
}

// running returns the number of pods that live and run.
func (l *lives) running() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, p := range l.pods {
		if p.running {
			n++
		}
	}
	return n
}

// see returns what is wrong with a version of a pod.
func (l *lives) see(pod *corev1.Pod) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deleted[pod.Namespace+"/"+pod.Name] {
		delete(l.pods, pod.UID)
		return nil
	}
	var f faults
	if pod.DeletionTimestamp != nil {
		f.add("pod %s is deleted by somebody", pod.Name)
	}
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		f.add("pod %s has ended: %s %s %s", pod.Name, pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
	}
	p := l.pods[pod.UID]
	if p == nil {
		p = &life{started: map[int]time.Time{}}
		l.pods[pod.UID] = p
	}
	p.running = false
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Running == nil {
			continue
		}
		p.running = pod.Status.Phase == corev1.PodRunning
		at := s.State.Running.StartedAt.Time
		of := 0 // the number of restarts of the kubelet until then
		isUnclear := false
		for _, restart := range l.restarts[pod.Spec.NodeName] {
			if at.After(restart) {
				of++
			}
			isUnclear = isUnclear || at.Equal(restart) // before or after it
		}
		switch was, is := p.started[of]; {
		case isUnclear:
		case !is:
			p.started[of] = at
		case !was.Equal(at):
			f.add("the container of pod %s was started at %s, and again at %s, and its kubelet was not started again in between", pod.Name, was.Format(time.TimeOnly), at.Format(time.TimeOnly))
			p.started[of] = at
		}
	}
	return f.lines
}

// gone returns what is wrong with it that a pod is gone.
func (l *lives) gone(pod *corev1.Pod) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pods, pod.UID)
	if l.deleted[pod.Namespace+"/"+pod.Name] {
		return nil
	}
	return []string{fmt.Sprintf("pod %s is gone", pod.Name)}
}
