package endpoints

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// kind is a kind of objects that have endpoints.
type kind uint8

const (
	slice     kind = iota + 1 // EndpointSlice of discovery.k8s.io/v1
	endpoints                 // Endpoints of v1
)

// change is what becomes of one endpoint. The zero value leaves it as it is.
type change struct {
	drop bool
	// address replaces the addresses; "" leaves them.
	address string
}

// edit returns an object, in either form, with the changes that decide returns for its endpoints. All
// other fields stay, also those that this program does not know. Without changes it returns object.
func edit(format wire.Format, k kind, m *wire.Meta, object []byte, decide func(*Endpoint) change) ([]byte, error) {
	if format == wire.Protobuf {
		return editProtobuf(k, m, object, decide)
	}
	return editTree(k, object, decide)
}

// Field numbers of generated.proto in k8s.io/api.
const (
	fieldEndpoints = 2 // of EndpointSlice
	fieldAddresses = 1 // of Endpoint
	fieldSubsets   = 2 // of Endpoints
	fieldReady     = 1 // of EndpointSubset: its addresses that are ready
	fieldNotReady  = 2
	fieldIP        = 1 // of EndpointAddress
)

const (
	// envelopeMagic begins the object form in protobuf.
	envelopeMagic = "k8s\x00"
	// podKind is the kind of the targets that are looked at.
	podKind = "Pod"
	// keyAddresses and keyReady are keys in JSON.
	keyAddresses, keyReady = "addresses", "ready"
)

// errKind says that a field has a value of another kind.
func errKind(field string, value any) error {
	return fmt.Errorf("the field %s of an object with endpoints is a %T", field, value)
}

func editProtobuf(k kind, m *wire.Meta, object []byte, decide func(*Endpoint) change) ([]byte, error) {
	message := object
	hasEnvelope := bytes.HasPrefix(object, []byte(envelopeMagic))
	if hasEnvelope {
		var err error
		if message, err = wire.Protobuf.ItemOf(object, false); err != nil {
			return nil, err
		}
	}
	var edited []byte
	var changed bool
	var err error
	if k == slice {
		edited, changed, err = editField(message, fieldEndpoints, func(sub []byte) ([]byte, error) {
			e, err := endpointOf(sub)
			if err != nil {
				return nil, err
			}
			return applyTo(sub, fieldAddresses, decide(&e))
		})
	} else {
		edited, changed, err = editField(message, fieldSubsets, func(sub []byte) ([]byte, error) { return editSubset(sub, decide) })
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading endpoints: %w", err)
	case !changed:
		return object, nil
	case hasEnvelope:
		return wire.Protobuf.ObjectOf(edited, m.APIVersion, m.Kind)
	default:
		return edited, nil
	}
}

// editSubset returns a subset of Endpoints; nil if it has no endpoint any more.
func editSubset(subset []byte, decide func(*Endpoint) change) ([]byte, error) {
	left := 0
	for _, field := range []protowire.Number{fieldReady, fieldNotReady} {
		edited, changed, err := editField(subset, field, func(sub []byte) ([]byte, error) {
			e, err := addressOf(sub, field == fieldReady)
			if err != nil {
				return nil, err
			}
			edited, err := applyTo(sub, fieldIP, decide(&e))
			if edited != nil {
				left++
			}
			return edited, err
		})
		if err != nil {
			return nil, err
		}
		if changed {
			subset = edited
		}
	}
	if left == 0 {
		return nil, nil
	}
	return subset, nil
}

// editField replaces the content of all fields of a number by what f returns; nil takes the field out.
func editField(message []byte, number protowire.Number, f func([]byte) ([]byte, error)) (edited []byte, changed bool, err error) {
	for rest := message; len(rest) > 0; {
		field, wireType, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return nil, false, protowire.ParseError(n)
		}
		length := protowire.ConsumeFieldValue(field, wireType, rest[n:])
		if length < 0 {
			return nil, false, protowire.ParseError(length)
		}
		whole := rest[:n+length]
		rest = rest[n+length:]
		if field != number || wireType != protowire.BytesType {
			edited = append(edited, whole...)
			continue
		}
		content, _ := protowire.ConsumeBytes(whole[n:])
		with, err := f(content)
		if err != nil {
			return nil, false, err
		}
		if with != nil && bytes.Equal(with, content) {
			edited = append(edited, whole...)
			continue
		}
		changed = true
		if with != nil {
			edited = protowire.AppendTag(edited, number, protowire.BytesType)
			edited = protowire.AppendBytes(edited, with)
		}
	}
	return edited, changed, nil
}

// applyTo returns the message of an endpoint with a change; nil if it is dropped.
func applyTo(message []byte, number protowire.Number, c change) ([]byte, error) {
	if c.drop {
		return nil, nil
	}
	if c.address == "" {
		return message, nil
	}
	first := true
	edited, _, err := editField(message, number, func([]byte) ([]byte, error) {
		if !first {
			return nil, nil
		}
		first = false
		return []byte(c.address), nil
	})
	return edited, err
}

// endpointOf reads the message of an Endpoint.
func endpointOf(message []byte) (Endpoint, error) {
	var e discoveryv1.Endpoint
	if err := e.Unmarshal(message); err != nil {
		return Endpoint{}, err
	}
	return Endpoint{
		Node: valueOf(e.NodeName), Zone: valueOf(e.Zone), Ready: e.Conditions.Ready == nil || *e.Conditions.Ready,
		Pod: podOf(e.TargetRef), Addresses: e.Addresses,
	}, nil
}

// addressOf reads the message of an EndpointAddress.
func addressOf(message []byte, isReady bool) (Endpoint, error) {
	var e corev1.EndpointAddress
	if err := e.Unmarshal(message); err != nil {
		return Endpoint{}, err
	}
	return Endpoint{Node: valueOf(e.NodeName), ZoneUnknown: true, Ready: isReady, Pod: podOf(e.TargetRef), Addresses: []string{e.IP}}, nil
}

func valueOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func podOf(r *corev1.ObjectReference) string {
	if r == nil || r.Kind != podKind {
		return ""
	}
	return string(r.UID)
}

// tree is an object in JSON.
type tree = map[string]any

func editTree(k kind, object []byte, decide func(*Endpoint) change) ([]byte, error) {
	root, err := decodeTree(object)
	if err != nil {
		return nil, fmt.Errorf("reading endpoints: %w", err)
	}
	var changed bool
	if k == slice {
		_, changed, err = editList(root, "endpoints", func(e tree) (bool, bool, error) {
			one, err := readEndpoint(e)
			if err != nil {
				return false, false, err
			}
			c := decide(&one)
			if c.address != "" {
				e[keyAddresses] = []any{c.address}
			}
			return !c.drop, c.address != "", nil
		})
	} else {
		_, changed, err = editList(root, "subsets", func(subset tree) (bool, bool, error) { return editTreeSubset(subset, decide) })
	}
	if err != nil {
		return nil, fmt.Errorf("reading endpoints: %w", err)
	}
	if !changed {
		return object, nil
	}
	return encodeTree(root)
}

func editTreeSubset(subset tree, decide func(*Endpoint) change) (keep, changed bool, err error) {
	left := 0
	for _, key := range []string{keyAddresses, "notReadyAddresses"} {
		n, edited, err := editList(subset, key, func(e tree) (bool, bool, error) {
			one, err := readAddress(e, key == keyAddresses)
			if err != nil {
				return false, false, err
			}
			c := decide(&one)
			if c.address != "" {
				e["ip"] = c.address
			}
			return !c.drop, c.address != "", nil
		})
		if err != nil {
			return false, false, err
		}
		if n == 0 {
			delete(subset, key)
		}
		left += n
		changed = changed || edited
	}
	return left > 0, changed, nil
}

// editList edits the list at a key, and returns how many items are left.
func editList(in tree, key string, f func(tree) (keep, changed bool, err error)) (left int, changed bool, err error) {
	items, is := in[key].([]any)
	if !is {
		if in[key] != nil {
			return 0, false, errKind(key, in[key])
		}
		return 0, false, nil
	}
	kept := items[:0]
	for _, item := range items {
		one, is := item.(tree)
		if !is {
			return 0, false, errKind(key, item)
		}
		keep, edited, err := f(one)
		if err != nil {
			return 0, false, err
		}
		if keep {
			kept = append(kept, item)
		}
		changed = changed || edited || !keep
	}
	in[key] = kept
	return len(kept), changed, nil
}

func decodeTree(object []byte) (root tree, err error) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	decoder.UseNumber()
	if err := decoder.Decode(&root); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one object")
	}
	return root, nil
}

func encodeTree(root tree) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(root)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}

// readEndpoint reads an item of endpoints.
func readEndpoint(e tree) (one Endpoint, err error) {
	if one, err = readShared(e); err != nil {
		return one, err
	}
	if one.Zone, err = text(e, "zone"); err != nil {
		return one, err
	}
	conditions, err := object(e, "conditions")
	if err != nil {
		return one, err
	}
	ready, is := conditions[keyReady].(bool)
	if !is && conditions[keyReady] != nil {
		return one, errKind(keyReady, conditions[keyReady])
	}
	one.Ready = ready || !is
	addresses, is := e[keyAddresses].([]any)
	if !is && e[keyAddresses] != nil {
		return one, errKind(keyAddresses, e[keyAddresses])
	}
	for _, a := range addresses {
		address, is := a.(string)
		if !is {
			return one, errKind(keyAddresses, a)
		}
		one.Addresses = append(one.Addresses, address)
	}
	return one, nil
}

// readAddress reads an item of the addresses of a subset.
func readAddress(e tree, isReady bool) (one Endpoint, err error) {
	if one, err = readShared(e); err != nil {
		return one, err
	}
	ip, err := text(e, "ip")
	one.ZoneUnknown, one.Ready, one.Addresses = true, isReady, []string{ip}
	return one, err
}

// readShared reads what both kinds have.
func readShared(e tree) (one Endpoint, err error) {
	if one.Node, err = text(e, "nodeName"); err != nil {
		return one, err
	}
	target, err := object(e, "targetRef")
	if err != nil {
		return one, err
	}
	kind, err := text(target, "kind")
	if err != nil {
		return one, err
	}
	if kind == podKind {
		one.Pod, err = text(target, "uid")
	}
	return one, err
}

// text returns the string at a key; "" if there is none.
func text(in tree, key string) (string, error) {
	value, is := in[key].(string)
	if !is && in[key] != nil {
		return "", errKind(key, in[key])
	}
	return value, nil
}

// object returns the object at a key; nil if there is none.
func object(in tree, key string) (tree, error) {
	value, is := in[key].(tree)
	if !is && in[key] != nil {
		return nil, errKind(key, in[key])
	}
	return value, nil
}
