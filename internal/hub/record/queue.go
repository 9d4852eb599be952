package record

import (
	"sync"
	"time"
)

const (
	// maxJobs limits the jobs that wait to be stored for one scope. A disk that hangs must not block responses.
	maxJobs = 1024
	// MaxScopes limits the scopes of the node with jobs, and maxOthersScopes the scopes of all other callers with
	// jobs.
	MaxScopes, maxOthersScopes = 3000, 512
	// spaceWithin is how long a watch waits for space in a full queue, the first time.
	spaceWithin = time.Second
	// settleWithin is how long a response from the cache waits for the jobs of its scope.
	settleWithin = 2 * time.Second
)

// queues have the jobs of all scopes. The jobs of one scope run in order, one at a time.
type queues struct {
	mu       sync.Mutex
	of       map[string]*queue
	others   int                  // the number of queues of callers other than the node
	relisted map[string]time.Time // when a scope was last listed again
	tasks    tasks
}

// queue has the jobs of one scope. It exists while there are jobs.
type queue struct {
	jobs  []func(*Job)
	space chan struct{} // receives a value when a job is taken
	state Job
}

// add adds a job for a scope. It waits for space in the queue. It returns false if there is none in time, or if
// too many scopes have jobs.
func (q *queues) add(r *Recorder, key string, wait time.Duration, job func(*Job)) bool {
	var timer <-chan time.Time // created only if needed: usually there is space
	for {
		q.mu.Lock()
		one := q.of[key]
		if one == nil {
			if IsOfNode(key) && len(q.of)-q.others >= MaxScopes || !IsOfNode(key) && q.others >= maxOthersScopes {
				q.mu.Unlock()
				return false
			}
			if q.of == nil {
				q.of = map[string]*queue{}
			}
			if !IsOfNode(key) {
				q.others++
			}
			one = &queue{space: make(chan struct{}, 1), state: Job{r: r, key: key}}
			q.of[key] = one
			q.tasks.Go(func() { q.run(key, one) })
		}
		if len(one.jobs) < maxJobs {
			one.jobs = append(one.jobs, job)
			q.mu.Unlock()
			return true
		}
		q.mu.Unlock()
		if timer == nil {
			timer = time.After(wait)
		}
		select {
		case <-one.space:
		case <-timer:
			return false
		}
	}
}

func (q *queues) run(key string, one *queue) {
	for {
		q.mu.Lock()
		if len(one.jobs) == 0 {
			delete(q.of, key)
			if !IsOfNode(key) {
				q.others--
			}
			q.mu.Unlock()
			return
		}
		job := one.jobs[0]
		one.jobs = one.jobs[1:]
		q.mu.Unlock()
		select {
		case one.space <- struct{}{}:
		default:
		}
		job(&one.state)
	}
}

func (q *queues) relistedAtLocked(key string, at time.Time) {
	if q.relisted == nil {
		q.relisted = map[string]time.Time{}
	}
	q.relisted[key] = at
}

// Settle waits until the current jobs of a scope are done, for at most settleWithin.
func (r *Recorder) Settle(key string) {
	done := make(chan struct{})
	if !r.IsBusy(key) || !r.queues.add(r, key, 0, func(*Job) { close(done) }) {
		return
	}
	select {
	case <-done:
	case <-time.After(settleWithin):
	}
}

// tasks counts goroutines. Unlike a [sync.WaitGroup], it allows new tasks while a goroutine waits.
type tasks struct {
	mu      sync.Mutex
	running int
	none    chan struct{} // closed when no task runs; nil if no goroutine waits
}

// Go runs a task.
func (t *tasks) Go(task func()) {
	t.mu.Lock()
	t.running++
	t.mu.Unlock()
	go func() {
		defer t.done()
		task()
	}()
}

func (t *tasks) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running--; t.running == 0 && t.none != nil {
		close(t.none)
		t.none = nil
	}
}

// Wait waits until no task runs.
func (t *tasks) Wait() {
	t.mu.Lock()
	if t.running == 0 {
		t.mu.Unlock()
		return
	}
	if t.none == nil {
		t.none = make(chan struct{})
	}
	none := t.none
	t.mu.Unlock()
	<-none
}
