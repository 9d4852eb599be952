package endpoints

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// maxPods is the most pods that are stored, and maxAddresses the most addresses of one pod.
	maxPods, maxAddresses = 1000, 8
	// MaxKept is the most bytes of the saved addresses.
	MaxKept = 1 << 20
)

// entry has the addresses that the kubelet last wrote for a pod.
type entry struct {
	Addresses []string `json:"addresses"`
	// Confirmed is true once the cloud has had these addresses. Before that the kubelet's addresses are used,
	// afterwards the cloud's.
	Confirmed bool `json:"confirmed,omitempty"`
	// Order is the age of the entry: the oldest entry has the lowest value.
	Order uint64 `json:"order"`
	// version is the newest resourceVersion of the pod that the cloud has returned since the hub started; "" if
	// none. newest are the addresses in it. before is the value of version when the kubelet wrote Addresses:
	// that version and all earlier ones are older than the write.
	version, before string
	newest          []string
}

// pods are the addresses of the node's pods, by UID. After a restart of the node offline they differ from the
// addresses that the cloud has written into its EndpointSlices.
type pods struct {
	entries map[string]entry
	// read are the addresses in the version that the kubelet last read. The kubelet computes its patches
	// against it.
	read  map[string][]string
	order uint64
}

// status has the fields of a pod that are used.
type status struct {
	Status struct {
		Phase  string  `json:"phase"`
		PodIP  string  `json:"podIP"`
		PodIPs []podIP `json:"podIPs"`
	} `json:"status"`
	Metadata struct {
		UID string `json:"uid"`
	} `json:"metadata"`
}

type podIP struct {
	IP string `json:"ip"`
	// Patch is a directive of a strategic merge patch.
	Patch string `json:"$patch,omitempty"`
}

func (s *status) addresses() []string {
	var list []string
	for _, ip := range s.Status.PodIPs {
		list = append(list, ip.IP)
	}
	if len(list) == 0 {
		list = []string{s.Status.PodIP}
	}
	return valid(list)
}

// valid returns the valid IP addresses of a list, up to maxAddresses.
func valid(list []string) []string {
	var ips []string
	for _, text := range list {
		if _, err := netip.ParseAddr(text); err == nil && len(ips) < maxAddresses {
			ips = append(ips, text)
		}
	}
	return ips
}

// decodeStatus decodes a pod, in JSON or protobuf.
func decodeStatus(format wire.Format, object []byte) (*status, error) {
	s := &status{}
	var err error
	switch format {
	case wire.JSON:
		err = format.ReadFields(object, s)
	default:
		if bytes.HasPrefix(object, []byte(envelopeMagic)) {
			if object, err = format.ItemOf(object, false); err != nil {
				break
			}
		}
		pod := &corev1.Pod{}
		if err = pod.Unmarshal(object); err != nil {
			break
		}
		s.Metadata.UID, s.Status.Phase, s.Status.PodIP = string(pod.UID), string(pod.Status.Phase), pod.Status.PodIP
		for _, ip := range pod.Status.PodIPs {
			s.Status.PodIPs = append(s.Status.PodIPs, podIP{IP: ip.IP})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading the status of a pod: %w", err)
	}
	return s, nil
}

// patch has the fields of a patch of a pod's status that are used. A missing field does not change.
type patch struct {
	Metadata struct {
		UID string `json:"uid"`
	} `json:"metadata"`
	Status struct {
		Phase  string          `json:"phase"`
		PodIP  json.RawMessage `json:"podIP"`
		PodIPs json.RawMessage `json:"podIPs"`
		Order  []podIP         `json:"$setElementOrder/podIPs"`
	} `json:"status"`
}

// errNotRead is the error of a patch without addresses, for a pod that the kubelet has not read through the
// hub.
var errNotRead = errors.New("the patch has no addresses, and the addresses of the pod are not known")

// addresses returns the addresses of the pod after the patch. read are its addresses before.
func (p *patch) addresses(read []string, isRead, isStrategic bool) ([]string, error) {
	var list []string
	for _, ip := range p.Status.Order {
		list = append(list, ip.IP) // the complete new list
	}
	if len(list) > 0 {
		return valid(list), nil
	}
	isNull := func(raw json.RawMessage) bool { return string(raw) == "null" }
	switch {
	case p.Status.PodIPs == nil && p.Status.PodIP == nil:
		if !isRead {
			return nil, errNotRead
		}
		return read, nil
	case isNull(p.Status.PodIPs), p.Status.PodIPs == nil && isNull(p.Status.PodIP):
		return nil, nil
	case p.Status.PodIPs == nil:
		var primary string
		if err := json.Unmarshal(p.Status.PodIP, &primary); err != nil {
			return nil, err
		}
		return valid([]string{primary}), nil
	}
	var changes []podIP
	if err := json.Unmarshal(p.Status.PodIPs, &changes); err != nil {
		return nil, err
	}
	if isStrategic && !slices.ContainsFunc(changes, func(c podIP) bool { return c.Patch == "replace" }) {
		list = slices.Clone(read)
	}
	for _, c := range changes {
		at := slices.Index(list, c.IP)
		switch {
		case c.Patch == "delete" && at >= 0:
			list = slices.Delete(list, at, at+1)
		case c.Patch == "" && at < 0:
			list = append(list, c.IP)
		}
	}
	return valid(list), nil
}

// written processes a write of the kubelet, and returns whether an address changed.
func (p *pods) written(method, contentType string, body []byte) (changed bool, err error) {
	var uid, phase string
	var addresses []string
	if method == http.MethodPatch {
		media, _, err := mime.ParseMediaType(contentType)
		if err != nil {
			return false, fmt.Errorf("reading a patch of a pod's status: %w", err)
		}
		var change patch
		if err := json.Unmarshal(body, &change); err != nil {
			return false, fmt.Errorf("reading a patch of a pod's status: %w", err)
		}
		uid, phase = change.Metadata.UID, change.Status.Phase
		read, isRead := p.read[uid]
		if addresses, err = change.addresses(read, isRead, media == "application/strategic-merge-patch+json"); errors.Is(err, errNotRead) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("reading a patch of a pod's status: %w", err)
		}
	} else {
		format, err := wire.FormatOf(contentType)
		if err != nil {
			return false, err
		}
		s, err := decodeStatus(format, body)
		if err != nil {
			return false, err
		}
		uid, phase, addresses = s.Metadata.UID, s.Status.Phase, s.addresses()
	}
	if uid == "" {
		return false, nil
	}
	if len(addresses) == 0 || phase == string(corev1.PodSucceeded) || phase == string(corev1.PodFailed) {
		return p.forget(uid), nil // the pod has no addresses: keep those in the cloud
	}
	if slices.Equal(p.entries[uid].Addresses, addresses) {
		return false, nil
	}
	p.put(uid, entry{Addresses: addresses, version: p.entries[uid].version, before: p.entries[uid].version})
	return true, nil
}

// put adds an entry. It removes the oldest entry if there are too many.
func (p *pods) put(uid string, e entry) {
	p.order++
	e.Order = p.order
	p.entries[uid] = e
	if len(p.entries) <= maxPods {
		return
	}
	oldest := uid
	for other, is := range p.entries {
		if is.Order < p.entries[oldest].Order {
			oldest = other
		}
	}
	delete(p.entries, oldest)
}

// reads records the version of a pod that the kubelet reads.
func (p *pods) reads(uid string, addresses []string) {
	if _, is := p.read[uid]; !is && len(p.read) >= maxPods {
		for other := range p.read { // any pod: the kubelet reads a pod again before it writes it
			delete(p.read, other)
			break
		}
	}
	p.read[uid] = addresses
}

// seen processes a version of a pod in the cloud. A list may be older or newer than the last event of a watch.
// changed is true if an address changed, and kept if the saved data changed.
func (p *pods) seen(uid, version string, addresses []string) (changed, kept bool) {
	e, is := p.entries[uid]
	if !is || len(addresses) == 0 || wire.IsUpTo(version, e.before) {
		return false, false
	}
	if !wire.IsUpTo(version, e.version) {
		e.version, e.newest = strings.Clone(version), addresses // version may share memory with a longer string
	}
	if !e.Confirmed && slices.Equal(e.Addresses, addresses) {
		e.Confirmed, kept = true, true
	}
	if e.Confirmed && !slices.Equal(e.Addresses, e.newest) { // the kubelet has written these addresses not through the hub
		e.Addresses, changed, kept = e.newest, true, true
	}
	p.entries[strings.Clone(uid)] = e // uid may also share memory
	return changed, kept
}

func (p *pods) forget(uid string) bool {
	_, is := p.entries[uid]
	delete(p.entries, uid)
	return is
}

// address returns the address that an endpoint of a pod should have; "" if the endpoint has it already or the
// address is not known.
func (p *pods) address(e *Endpoint) string {
	own, is := p.entries[e.Pod]
	if e.Pod == "" || !is || len(e.Addresses) == 0 {
		return ""
	}
	was, err := netip.ParseAddr(e.Addresses[0])
	if err != nil {
		return ""
	}
	for _, text := range own.Addresses {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Is4() != was.Is4() {
			continue
		}
		if ip == was {
			return ""
		}
		return text
	}
	return ""
}

// kept is the content of the file with the addresses of pods.
type kept struct {
	Pods map[string]entry `json:"pods"`
}

// encode returns the data to save.
func (p *pods) encode() []byte {
	text, err := json.Marshal(kept{p.entries})
	if err != nil {
		panic(err) // all fields can be encoded
	}
	return text
}

// newPods returns the pods that were saved.
func newPods(text []byte) (*pods, error) {
	p := &pods{entries: map[string]entry{}, read: map[string][]string{}}
	if text == nil {
		return p, nil
	}
	var k kept
	if err := json.Unmarshal(text, &k); err != nil {
		return p, fmt.Errorf("reading the addresses of the node's pods: %w", err)
	}
	for uid, e := range k.Pods {
		if e.Addresses = valid(e.Addresses); len(e.Addresses) == 0 || len(p.entries) >= maxPods {
			continue
		}
		p.entries[uid] = e
		p.order = max(p.order, e.Order)
	}
	return p, nil
}
