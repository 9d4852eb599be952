package patch

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestAnotherOfThatName(t *testing.T) {
	things := schema.GroupResource{Resource: "things"}
	invalid := func(causes ...*field.Error) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", causes)
	}
	uid, spec := field.NewPath("metadata", "uid"), field.NewPath("spec")
	bare := apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", nil)
	bare.ErrStatus.Details = nil
	tests := map[string]struct {
		err  error
		want bool
	}{
		"the UID was a precondition":           {apierrors.NewConflict(things, "a", errors.New("Precondition failed: UID in precondition: b, UID in object meta: c")), true},
		"of a deletion":                        {apierrors.NewConflict(things, "a", errors.New("the UID in the precondition (b) does not match the UID in record (c). The object might have been deleted and then recreated")), true},
		"the object was changed":               {apierrors.NewConflict(things, "a", errors.New("the object has been modified; please apply your changes to the latest version and try again")), false},
		"the version was a precondition":       {apierrors.NewConflict(things, "a", errors.New("Precondition failed: ResourceVersion in precondition: 1, ResourceVersion in object meta: 2")), false},
		"the UID cannot be changed":            {invalid(field.Invalid(uid, "b", "field is immutable")), true},
		"another field cannot be changed too":  {invalid(field.Invalid(spec, "b", "field is immutable"), field.Invalid(uid, "b", "field is immutable")), true},
		"only another field cannot be changed": {invalid(field.Invalid(spec, "b", "field is immutable")), false},
		"the UID is refused in another way":    {invalid(field.Forbidden(uid, "no")), false},
		"a refusal without details":            {bare, false},
		"the object is gone":                   {apierrors.NewNotFound(things, "a"), false},
		"an error that is not of the server":   {errors.New("broken"), false},
		"no error":                             {nil, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := AnotherOfThatName(tc.err); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	things := schema.GroupResource{Resource: "things"}
	tests := map[string]struct {
		err  error
		want bool
	}{
		"a missing permission":       {apierrors.NewForbidden(things, "a", errors.New("no")), true},
		"an admission policy":        {apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", nil), true},
		"a webhook":                  {apierrors.NewBadRequest("no"), true},
		"wrapped":                    {fmt.Errorf("writing: %w", apierrors.NewBadRequest("no")), true},
		"a concurrent change":        {apierrors.NewConflict(things, "a", errors.New("changed")), false},
		"the object is gone":         {apierrors.NewNotFound(things, "a"), false},
		"another of that name":       {apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "b", "immutable")}), false},
		"the server is busy":         {apierrors.NewTooManyRequests("later", 1), false},
		"the server failed":          {apierrors.NewInternalError(errors.New("broken")), false},
		"missing authentication":     {apierrors.NewUnauthorized("who"), false},
		"an error of something else": {errors.New("broken"), false},
		"no error":                   {nil, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Refused(tc.err); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
