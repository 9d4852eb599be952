package overridepolicy

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/replacement"
)

// memory holds what passes remember of workloads, by the UID of the workload. It is lost
// with the process. Safe for concurrent use; the zero value is empty.
type memory struct {
	mu sync.Mutex
	// bypasses has an entry for each workload of which pods were replaced.
	bypasses map[types.UID]*replacement.Bypass
	// images has an entry, by NodeGroup, for each workload whose images the API server
	// refused on a pod.
	images map[types.UID]map[string]refusedImages
}

// refusedImages is a refusal of the images of pods in one group.
type refusedImages struct {
	// version is that of the policy that set the images.
	version string
	why     error
	// again is the time of the next try, wait after the last one.
	again time.Time
	wait  time.Duration
}

// A pod whose images were refused is tried again after retryImages. The wait doubles up to
// maxRetryImages.
const retryImages, maxRetryImages = 30 * time.Second, 5 * time.Minute

// imagesRefused returns why no pod of a workload in the group may be tried, and for how
// long. left is 0 if a pod may be tried.
func (m *memory) imagesRefused(w *workload, group, version string, now time.Time) (left time.Duration, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.images[w.Object.UID][group]
	if last.version != version {
		return 0, nil
	}
	return max(0, last.again.Sub(now)), last.why
}

// imagesWereRefused records a refusal, and returns the time until the next try.
func (m *memory) imagesWereRefused(w *workload, group, version string, why error, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	wait := retryImages
	if last := m.images[w.Object.UID][group]; last.version == version {
		wait = min(maxRetryImages, 2*last.wait)
	}
	if m.images == nil {
		m.images = map[types.UID]map[string]refusedImages{}
	}
	if m.images[w.Object.UID] == nil {
		m.images[w.Object.UID] = map[string]refusedImages{}
	}
	m.images[w.Object.UID][group] = refusedImages{version, why, now.Add(wait), wait}
	return wait
}

// imagesWereAccepted drops the refusal of a group.
func (m *memory) imagesWereAccepted(w *workload, group string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.images[w.Object.UID], group)
}

// see records which new pods passed the pod webhook. It returns whether no more than one
// pod may be replaced, and how long none may: see replacement.Bypass.
func (m *memory) see(w *workload, now time.Time) (onlyOne bool, left time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	bypass := m.bypasses[w.Object.UID]
	if bypass == nil {
		return false, 0
	}
	bypass.See(w.MissedAt, w.AdmittedAt)
	return bypass.Pause(now)
}

// replaced records that a pod of a workload was replaced.
func (m *memory) replaced(w *workload, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	bypass := m.bypasses[w.Object.UID]
	if bypass == nil {
		if m.bypasses == nil {
			m.bypasses = map[types.UID]*replacement.Bypass{}
		}
		bypass = &replacement.Bypass{}
		m.bypasses[w.Object.UID] = bypass
	}
	bypass.Replaced(w.MissedAt, w.AdmittedAt, now)
}

// forget drops a workload.
func (m *memory) forget(workload types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.bypasses, workload)
	delete(m.images, workload)
}
