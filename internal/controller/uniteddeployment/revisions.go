package uniteddeployment

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
)

// collisions bounds how many names are tried for one revision in one pass.
const collisions = 5

// revise finds or creates the ControllerRevision of the template. A revision contains the
// template only, without replicas, patches and pools. If the template equals that of an
// older revision, this revision gets the highest number.
func (r *Reconciler) revise(ctx context.Context, s *scope) error {
	if s.ud.Spec.WorkloadTemplate.Type() == "" {
		return s.fail(apps.ReasonRevisionFailed, "reading spec.workloadTemplate", fmt.Errorf("no template is set"))
	}
	if err := r.listRevisions(ctx, s); err != nil {
		return s.fail(apps.ReasonRevisionFailed, "listing ControllerRevisions", err)
	}
	var highest int64
	for _, revision := range s.revisions {
		highest = max(highest, revision.Revision)
		if t := s.templates[s.short(revision.Name)]; t != nil && equality.Semantic.DeepEqual(t, &s.ud.Spec.WorkloadTemplate) {
			s.update = revision
		}
	}
	var err error
	switch {
	case s.update == nil:
		err = r.createRevision(ctx, s, highest+1)
	case s.update.Revision < highest:
		again := s.update.DeepCopy()
		again.Revision = highest + 1
		if err = r.Client.Update(ctx, again); err == nil {
			s.update = again
		}
	}
	if err != nil {
		return s.fail(apps.ReasonRevisionFailed, "writing the ControllerRevision of the template", err)
	}
	return nil
}

// listRevisions lists our revisions, and adopts those that have our label and no controller.
func (r *Reconciler) listRevisions(ctx context.Context, s *scope) error {
	var list appsv1.ControllerRevisionList
	err := r.Client.List(ctx, &list, client.InNamespace(s.ud.Namespace), client.MatchingLabels{apps.UnitedDeploymentLabel: s.ud.Name})
	if err != nil {
		return err
	}
	s.templates = map[string]*apps.WorkloadTemplate{}
	for i := range list.Items {
		revision := &list.Items[i]
		if budget.Unread(revision) != nil {
			whole := &appsv1.ControllerRevision{}
			err := r.Live.Get(ctx, client.ObjectKeyFromObject(revision), whole)
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("reading %q: %w", revision.Name, err)
			}
			if err := s.count(whole); err != nil {
				return err
			}
			revision = whole
		}
		owner := metav1.GetControllerOfNoCopy(revision)
		if revision.DeletionTimestamp != nil || owner != nil && owner.UID != s.ud.UID {
			continue
		}
		if owner == nil {
			revision.OwnerReferences = append(revision.OwnerReferences, *controllerRef(s.ud))
			if err := r.Client.Update(ctx, revision); err != nil {
				return fmt.Errorf("adopting %q: %w", revision.Name, err)
			}
		}
		s.addRevision(revision)
	}
	slices.SortFunc(s.revisions, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Name, b.Name))
	})
	return nil
}

// addRevision adds a revision and its template, if that can be decoded.
func (s *scope) addRevision(revision *appsv1.ControllerRevision) {
	s.revisions = append(s.revisions, revision)
	if template := templateIn(revision); template != nil {
		s.templates[s.short(revision.Name)] = template
	}
}

// templateIn returns the template in a revision; nil if it cannot be decoded.
func templateIn(revision *appsv1.ControllerRevision) *apps.WorkloadTemplate {
	template := &apps.WorkloadTemplate{}
	if json.Unmarshal(revision.Data.Raw, template) != nil {
		return nil
	}
	return template
}

// short returns the name of a revision without the prefix "<UnitedDeployment>-". Labels
// have this form.
func (s *scope) short(revision string) string {
	return strings.TrimPrefix(revision, s.ud.Name+"-")
}

// long returns the name of the revision with a short name; "" for "".
func (s *scope) long(short string) string {
	if short == "" {
		return ""
	}
	return s.ud.Name + "-" + short
}

// createRevision creates a revision. If its name is taken by a revision with another
// template, it increases the collision count, which changes the name.
func (r *Reconciler) createRevision(ctx context.Context, s *scope, number int64) error {
	raw, err := canonical(&s.ud.Spec.WorkloadTemplate)
	if err != nil {
		return err
	}
	var last error
	for range collisions {
		count := int32(0)
		if s.ud.Status.CollisionCount != nil {
			count = *s.ud.Status.CollisionCount
		}
		short := revisionHash(raw, count)
		revision := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.ud.Namespace, Name: s.long(short),
				Labels:          map[string]string{apps.UnitedDeploymentLabel: s.ud.Name, apps.RevisionLabel: short},
				OwnerReferences: []metav1.OwnerReference{*controllerRef(s.ud)},
			},
			Data:     runtime.RawExtension{Raw: raw},
			Revision: number,
		}
		err := r.Client.Create(ctx, revision)
		if apierrors.IsAlreadyExists(err) {
			revision, err = r.sameRevision(ctx, s, revision)
		}
		if err != nil {
			return err
		}
		if revision != nil {
			s.addRevision(revision)
			s.update = revision
			return nil
		}
		count++
		s.ud.Status.CollisionCount = &count
		last = fmt.Errorf("the name %q is taken", s.long(short))
	}
	return last
}

// sameRevision returns the existing revision with the name of want if it is ours and has
// the same template: then the cache was stale. Otherwise it returns nil.
func (r *Reconciler) sameRevision(ctx context.Context, s *scope, want *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	there := &appsv1.ControllerRevision{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(want), there); err != nil {
		return nil, err
	}
	if metav1.IsControlledBy(there, s.ud) && equality.Semantic.DeepEqual(templateIn(there), &s.ud.Spec.WorkloadTemplate) {
		return there, nil
	}
	return nil, nil
}

// canonical returns the JSON of a template with sorted keys and without nulls. The data of
// a ControllerRevision is immutable, and a client that patches its metadata, such as the
// garbage collector, writes the data back in this form.
func canonical(template *apps.WorkloadTemplate) ([]byte, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template)
	if err != nil {
		return nil, err
	}
	return json.Marshal(withoutNulls(object))
}

// withoutNulls removes all keys of maps whose value is nil, in place.
func withoutNulls(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, below := range v {
			if v[key] = withoutNulls(below); v[key] == nil {
				delete(v, key)
			}
		}
	case []any:
		for i := range v {
			v[i] = withoutNulls(v[i])
		}
	}
	return value
}

// revisionHash returns the short name of a revision.
func revisionHash(raw []byte, collisionCount int32) string {
	sum := sha256.New()
	sum.Write(raw)
	if collisionCount > 0 {
		sum.Write([]byte(strconv.Itoa(int(collisionCount))))
	}
	return hex.EncodeToString(sum.Sum(nil))[:10]
}

func controllerRef(ud *apps.UnitedDeployment) *metav1.OwnerReference {
	return metav1.NewControllerRef(ud, apps.GroupVersion.WithKind("UnitedDeployment"))
}

// rollBack replaces the template by that of an older revision if an annotation demands it,
// and removes the annotation. This is the only write to the spec, which belongs to the
// user. It is refused if the object has changed since it was read.
func (r *Reconciler) rollBack(ctx context.Context, s *scope) error {
	to, asked := s.ud.Annotations[apps.RollbackToAnnotation]
	if !asked || s.update == nil {
		return nil
	}
	before := s.ud.DeepCopy()
	after := s.ud.DeepCopy()
	delete(after.Annotations, apps.RollbackToAnnotation)
	revision := s.find(to)
	if revision != nil {
		s.templates[s.short(revision.Name)].DeepCopyInto(&after.Spec.WorkloadTemplate)
	}
	after.Status = before.Status
	if err := r.Client.Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return s.fail(apps.ReasonRevisionFailed, fmt.Sprintf("rolling back to %q", to), err)
	}
	s.replaced = true
	if revision == nil {
		r.rollbackNotFound(s.ud, to)
	} else {
		r.rolledBack(s.ud, revision)
	}
	return nil
}

// find returns the revision that a rollback names: by name, short name, number or
// apps.RollbackToPrevious. It returns nil if no such revision with a template exists.
func (s *scope) find(to string) *appsv1.ControllerRevision {
	for i := len(s.revisions) - 1; i >= 0; i-- {
		revision := s.revisions[i]
		if s.templates[s.short(revision.Name)] == nil {
			continue
		}
		switch {
		case to == apps.RollbackToPrevious:
			if revision.Name != s.update.Name {
				return revision
			}
		case to == revision.Name, to == s.short(revision.Name), to == strconv.FormatInt(revision.Revision, 10):
			return revision
		}
	}
	return nil
}

// trim deletes revisions beyond the limit, the oldest first. It keeps the update revision,
// the current revision and those of existing workloads. It runs after report, which sets
// the current revision.
func (r *Reconciler) trim(ctx context.Context, s *scope) error {
	if !s.observed || !s.reported {
		return nil
	}
	limit := apps.DefaultRevisionHistoryLimit
	if s.ud.Spec.RevisionHistoryLimit != nil {
		limit = *s.ud.Spec.RevisionHistoryLimit
	}
	used := map[string]bool{s.update.Name: true, s.ud.Status.CurrentRevision: true}
	for _, w := range s.live {
		used[s.long(w.GetLabels()[apps.RevisionLabel])] = true
	}
	var old []*appsv1.ControllerRevision
	for _, revision := range s.revisions {
		if !used[revision.Name] {
			old = append(old, revision)
		}
	}
	for _, revision := range old[:max(0, len(old)-int(limit))] {
		err := r.Client.Delete(ctx, revision, client.Preconditions{UID: &revision.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting ControllerRevision %q: %w", revision.Name, err)
		}
	}
	return nil
}
