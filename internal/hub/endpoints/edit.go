package endpoints

import (
	"bytes"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// kind is a kind of object with endpoints.
type kind uint8

const (
	slice     kind = iota + 1 // EndpointSlice of discovery.k8s.io/v1
	endpoints                 // Endpoints of v1
)

const (
	// envelopeMagic is the prefix of a protobuf object with an envelope.
	envelopeMagic = "k8s\x00"
	// podKind is the kind of target that is used.
	podKind = "Pod"
)

// change is the change of one endpoint. The zero value changes nothing.
type change struct {
	drop bool
	// address replaces the addresses; "" leaves them.
	address string
}

// editable is an object with endpoints.
type editable interface {
	Unmarshal(message []byte) error
	Marshal() ([]byte, error)
}

// edit returns an object, in JSON or protobuf, with the changes that decide returns for its endpoints. Without
// changes it returns object. With changes, the result has only the fields that this program knows.
func edit(format wire.Format, k kind, m *wire.Meta, object []byte, decide func(*Endpoint) change) ([]byte, error) {
	var into editable
	var changed func() bool
	if k == slice {
		s := &discoveryv1.EndpointSlice{}
		into, changed = s, func() bool { return editSlice(s, decide) }
	} else {
		e := &corev1.Endpoints{} //nolint:staticcheck // deprecated, but clients request it
		into, changed = e, func() bool { return editEndpoints(e, decide) }
	}
	if err := decodeInto(format, object, into); err != nil {
		return nil, fmt.Errorf("reading endpoints: %w", err)
	}
	if !changed() {
		return object, nil
	}
	if format != wire.Protobuf {
		return json.Marshal(into)
	}
	edited, err := into.Marshal()
	if err == nil && bytes.HasPrefix(object, []byte(envelopeMagic)) {
		return wire.Protobuf.ObjectOf(edited, m.APIVersion, m.Kind)
	}
	return edited, err
}

// decodeInto decodes an object, in JSON or protobuf.
func decodeInto(format wire.Format, object []byte, into editable) error {
	if format != wire.Protobuf {
		return json.Unmarshal(object, into)
	}
	if bytes.HasPrefix(object, []byte(envelopeMagic)) {
		item, err := format.ItemOf(object, false)
		if err != nil {
			return err
		}
		object = item
	}
	return into.Unmarshal(object)
}

func editSlice(s *discoveryv1.EndpointSlice, decide func(*Endpoint) change) (changed bool) {
	kept := s.Endpoints[:0]
	for _, e := range s.Endpoints {
		c := decide(&Endpoint{
			Node: ptr.Deref(e.NodeName, ""), Zone: ptr.Deref(e.Zone, ""), Ready: ptr.Deref(e.Conditions.Ready, true), Pod: podOf(e.TargetRef), Addresses: e.Addresses,
		})
		if c.address != "" {
			e.Addresses = []string{c.address}
		}
		if changed = changed || c != (change{}); !c.drop {
			kept = append(kept, e)
		}
	}
	s.Endpoints = kept
	return changed
}

func editEndpoints(all *corev1.Endpoints, decide func(*Endpoint) change) (changed bool) { //nolint:staticcheck // as above
	kept := all.Subsets[:0]
	for _, subset := range all.Subsets {
		edit := func(addresses []corev1.EndpointAddress, isReady bool) (kept []corev1.EndpointAddress) {
			for _, e := range addresses {
				c := decide(&Endpoint{Node: ptr.Deref(e.NodeName, ""), ZoneUnknown: true, Ready: isReady, Pod: podOf(e.TargetRef), Addresses: []string{e.IP}})
				if c.address != "" {
					e.IP = c.address
				}
				if changed = changed || c != (change{}); !c.drop {
					kept = append(kept, e)
				}
			}
			return kept
		}
		subset.Addresses, subset.NotReadyAddresses = edit(subset.Addresses, true), edit(subset.NotReadyAddresses, false)
		if len(subset.Addresses)+len(subset.NotReadyAddresses) > 0 {
			kept = append(kept, subset)
		}
	}
	all.Subsets = kept
	return changed
}

func podOf(r *corev1.ObjectReference) string {
	if r == nil || r.Kind != podKind {
		return ""
	}
	return string(r.UID)
}
