package policy

import (
	"errors"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestTooLargePolicyIsRefused: the error for a policy that is too large names the field and says
// what to do.
func TestTooLargePolicyIsRefused(t *testing.T) {
	full := Options{Fits: func(client.Object) error { return errors.New("it takes too much: make it shorter") }}
	for name, validate := range map[string]func(o Options) (admission.Warnings, error){
		"PropagationPolicy": func(o Options) (admission.Warnings, error) {
			return Propagation{o}.ValidateCreate(t.Context(), build.PropagationPolicy("p", build.Weight(1, "a")))
		},
		"OverridePolicy": func(o Options) (admission.Warnings, error) {
			return Override{o}.ValidateUpdate(t.Context(), build.OverridePolicy("o"), build.OverridePolicy("o"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := validate(full); err == nil || !strings.Contains(err.Error(), "spec: Invalid value: it takes too much: make it shorter") {
				t.Errorf("got %v", err)
			}
			if _, err := validate(Options{Fits: func(client.Object) error { return nil }}); err != nil {
				t.Errorf("a policy that fits is refused: %v", err)
			}
		})
	}
}
