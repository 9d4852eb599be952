package manager

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestTheManagerWaitsForItsKinds: the API server serves a kind some time after its definition is
// installed, and may not answer in between. If it never does, the error names the kind.
func TestTheManagerWaitsForItsKinds(t *testing.T) {
	all := ownKinds(true, true)
	if len(ownKinds(false, false)) >= len(all) {
		t.Error("without pools there are as many kinds")
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		served := func(but string, after time.Duration, until error) listKinds {
			return func(_ context.Context, groupVersion string) (*metav1.APIResourceList, error) {
				list := &metav1.APIResourceList{GroupVersion: groupVersion}
				late := time.Since(began) < after
				for _, kind := range all {
					if kind.GroupVersion().String() == groupVersion && (!late || kind.Kind != but) {
						list.APIResources = append(list.APIResources, metav1.APIResource{Kind: kind.Kind})
					}
				}
				if late && until != nil {
					return nil, until
				}
				return list, nil
			}
		}
		notFound := apierrors.NewNotFound(schema.GroupResource{}, "x")
		for _, tc := range []struct {
			name  string
			list  listKinds
			want  time.Duration
			error string
		}{
			{"at once", served("", 0, nil), 0, ""},
			{"a kind comes", served("UnitedDeployment", 3*time.Second, nil), 3 * time.Second, ""},
			{"a group comes", served("", 3*time.Second, notFound), 3 * time.Second, ""},
			{"no answer for a while", served("", 3*time.Second, errors.New("gone")), 3 * time.Second, ""},
			{"a kind never comes", served("OverridePolicy", time.Hour, nil), servedWithin, "does not serve OverridePolicy in groupmanagement.kubeedge.io/v1alpha1"},
			{"no answer ever", served("", time.Hour, errors.New("gone")), servedWithin, "gone"},
		} {
			began = time.Now()
			err := awaitKinds(t.Context(), tc.list, all, logr.Discard())
			if took := time.Since(began); took != tc.want || (err == nil) != (tc.error == "") || err != nil && !strings.Contains(err.Error(), tc.error) {
				t.Errorf("%s: after %s: %v", tc.name, took, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := awaitKinds(ctx, served("NodeGroup", time.Hour, nil), all, logr.Discard()); err == nil {
			t.Error("it starts although it was stopped")
		}
	})
}

// TestTheManagerStartsWhileItsKindsAreBeingDeleted: a CustomResourceDefinition that is being
// deleted stays until a manager has removed its finalizers from the objects. A new installation
// is the way out for who uninstalled before they were gone.
func TestTheManagerStartsWhileItsKindsAreBeingDeleted(t *testing.T) {
	list := func(_ context.Context, groupVersion string) (*metav1.APIResourceList, error) {
		list := &metav1.APIResourceList{GroupVersion: groupVersion}
		for _, kind := range ownKinds(true, true) {
			// The verbs are those of apiextensions-apiserver for the condition Terminating.
			list.APIResources = append(list.APIResources, metav1.APIResource{Kind: kind.Kind, Verbs: metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}})
		}
		return list, nil
	}
	synctest.Test(t, func(t *testing.T) {
		if err := awaitKinds(t.Context(), list, ownKinds(true, true), logr.Discard()); err != nil {
			t.Error(err)
		}
	})
}
