package jobs

import (
	"errors"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const annotation = "example.com/restart"

var name = types.NamespacedName{Namespace: "ns", Name: "job"}

func job(changes ...func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "uid", ResourceVersion: "7"}}
	j.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"job": "uid"}}
	for _, change := range changes {
		change(j)
	}
	return j
}

func suspend(j *batchv1.Job) { j.Spec.Suspend = new(true) }

func noted(note string) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Annotations = map[string]string{annotation: note} }
}

func condition(kind batchv1.JobConditionType) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: corev1.ConditionTrue}}
	}
}

func podOf(changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", Labels: map[string]string{"job": "uid"}}}
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job(), batchv1.SchemeGroupVersion.WithKind("Job"))}
	p.Status.Phase = corev1.PodPending
	for _, change := range changes {
		change(p)
	}
	return p
}

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func newRestarter(objects ...runtime.Object) (*Restarter, *fake.Clientset) {
	client := fake.NewClientset(objects...)
	return &Restarter{Client: client, Annotation: annotation}, client
}

func live(t *testing.T, client *fake.Clientset) (suspended bool, note string) {
	t.Helper()
	j, err := client.BatchV1().Jobs("ns").Get(t.Context(), "job", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return isSuspended(j), j.Annotations[annotation]
}

func TestSuspend(t *testing.T) {
	tests := map[string]struct {
		objects   []runtime.Object
		want      error
		suspended bool
		note      string
	}{
		"no pod has a node":         {objects: []runtime.Object{job(), podOf()}, suspended: true, note: "suspended uid why"},
		"it has no pod":             {objects: []runtime.Object{job()}, suspended: true, note: "suspended uid why"},
		"a pod has a node":          {objects: []runtime.Object{job(), podOf(on("node"))}, want: ErrStarted},
		"a pod has failed":          {objects: []runtime.Object{job(), podOf(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, want: ErrStarted},
		"another's pod has a node":  {objects: []runtime.Object{job(), podOf(on("node"), func(p *corev1.Pod) { p.OwnerReferences = nil })}, suspended: true, note: "suspended uid why"},
		"a pod has succeeded":       {objects: []runtime.Object{job(func(j *batchv1.Job) { j.Status.Succeeded = 1 })}, want: ErrStarted},
		"a pod that failed is gone": {objects: []runtime.Object{job(func(j *batchv1.Job) { j.Status.Failed = 1 })}, want: ErrStarted},
		"one that is not counted yet": {
			objects: []runtime.Object{job(func(j *batchv1.Job) {
				j.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Failed: []types.UID{"x"}}
			})}, want: ErrStarted,
		},
		"it has failed":                       {objects: []runtime.Object{job(condition(batchv1.JobFailed))}, want: ErrStarted},
		"a user has suspended it":             {objects: []runtime.Object{job(suspend)}, want: ErrManaged, suspended: true},
		"suspended again after we resumed it": {objects: []runtime.Object{job(suspend, noted("resumed uid other"))}, want: ErrManaged, suspended: true, note: "resumed uid other"},
		"we have suspended it":                {objects: []runtime.Object{job(suspend, noted("suspended uid other")), podOf()}, suspended: true, note: "suspended uid other"},
		"the annotation is another Job's":     {objects: []runtime.Object{job(suspend, noted("suspended another why"))}, want: ErrManaged, suspended: true, note: "suspended another why"},
		"a queue admits it":                   {objects: []runtime.Object{job(func(j *batchv1.Job) { j.Labels = map[string]string{queueLabel: "q"} })}, want: ErrManaged},
		"another controller runs it":          {objects: []runtime.Object{job(func(j *batchv1.Job) { j.Spec.ManagedBy = new("kueue.x-k8s.io/multikueue") })}, want: ErrManaged},
		"the built-in controller runs it":     {objects: []runtime.Object{job(func(j *batchv1.Job) { j.Spec.ManagedBy = new(batchv1.JobControllerName) })}, suspended: true, note: "suspended uid why"},
		"for this reason it was done before":  {objects: []runtime.Object{job(noted("resumed uid why"))}, want: ErrAgain, note: "resumed uid why"},
		"for another reason it was done":      {objects: []runtime.Object{job(noted("resumed uid other"))}, suspended: true, note: "suspended uid other why"},
		"for several it was done before":      {objects: []runtime.Object{job(noted("resumed uid why other"))}, want: ErrAgain, note: "resumed uid why other"},
		"it was resumed before: no obstacle": {objects: []runtime.Object{job(func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionFalse}}
		})}, suspended: true, note: "suspended uid why"},
		"another of that name":   {objects: []runtime.Object{job(func(j *batchv1.Job) { j.UID = "younger" })}, want: ErrGone},
		"the Job is about to go": {objects: []runtime.Object{job(func(j *batchv1.Job) { j.DeletionTimestamp = new(metav1.Now()); j.Finalizers = []string{"x"} })}, want: ErrGone},
	}
	for title, tc := range tests {
		t.Run(title, func(t *testing.T) {
			r, client := newRestarter(tc.objects...)
			if err := r.Suspend(t.Context(), name, "uid", "why"); !errors.Is(err, tc.want) {
				t.Errorf("error is %v, want %v", err, tc.want)
			}
			if suspended, note := live(t, client); suspended != tc.suspended || note != tc.note {
				t.Errorf("suspended %t, note %q; want %t, %q", suspended, note, tc.suspended, tc.note)
			}
		})
	}
	r, _ := newRestarter()
	if err := r.Suspend(t.Context(), name, "uid", "why"); !errors.Is(err, ErrGone) {
		t.Errorf("error is %v of a Job that is gone", err)
	}
}

// TestSuspendHasAResourceVersionPrecondition: its first pod may get its node meanwhile.
func TestSuspendHasAResourceVersionPrecondition(t *testing.T) {
	r, client := newRestarter(job())
	seen := ""
	client.PrependReactor("patch", "jobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		seen = string(a.(clienttesting.PatchAction).GetPatch())
		return false, nil, nil
	})
	if err := r.Suspend(t.Context(), name, "uid", "why"); err != nil {
		t.Fatal(err)
	}
	want := `{"metadata":{"annotations":{"example.com/restart":"suspended uid why"},"resourceVersion":"7","uid":"uid"},"spec":{"suspend":true}}`
	if seen != want {
		t.Errorf("patched with %s, want %s", seen, want)
	}
}

func TestResume(t *testing.T) {
	ours := noted("suspended uid why")
	tests := map[string]struct {
		objects         []runtime.Object
		done, suspended bool
		note            string
	}{
		"its pods are gone":                 {objects: []runtime.Object{job(suspend, ours, condition(batchv1.JobSuspended))}, done: true, note: "resumed uid why"},
		"a pod is left":                     {objects: []runtime.Object{job(suspend, ours, condition(batchv1.JobSuspended)), podOf()}, suspended: true, note: "suspended uid why"},
		"one terminates":                    {objects: []runtime.Object{job(suspend, ours, condition(batchv1.JobSuspended)), podOf(func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()); p.Finalizers = []string{"x"} })}, done: true, note: "resumed uid why"},
		"the Job controller has not seen":   {objects: []runtime.Object{job(suspend, ours)}, suspended: true, note: "suspended uid why"},
		"a user has resumed it":             {objects: []runtime.Object{job(ours), podOf()}, done: true, note: "resumed uid why"},
		"a user has suspended it":           {objects: []runtime.Object{job(suspend, condition(batchv1.JobSuspended))}, done: true, suspended: true},
		"a user has, after we resumed it":   {objects: []runtime.Object{job(suspend, noted("resumed uid why"), condition(batchv1.JobSuspended))}, done: true, suspended: true, note: "resumed uid why"},
		"a copy of a Job that we suspended": {objects: []runtime.Object{job(suspend, noted("suspended other why"), condition(batchv1.JobSuspended))}, done: true, suspended: true, note: "suspended other why"},
	}
	for title, tc := range tests {
		t.Run(title, func(t *testing.T) {
			r, client := newRestarter(tc.objects...)
			done, err := r.Resume(t.Context(), name, "uid")
			if err != nil || done != tc.done {
				t.Errorf("done %t, want %t, error %v", done, tc.done, err)
			}
			if suspended, note := live(t, client); suspended != tc.suspended || note != tc.note {
				t.Errorf("suspended %t, note %q; want %t, %q", suspended, note, tc.suspended, tc.note)
			}
		})
	}
	r, _ := newRestarter()
	if done, err := r.Resume(t.Context(), name, "uid"); !done || err != nil {
		t.Errorf("a Job that is gone: done %t, error %v", done, err)
	}
}
