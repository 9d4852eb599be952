package endpoints

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// TopologyAnnotation is the annotation of a Service with the keys of its topology, in the order of preference.
const TopologyAnnotation = "openyurt.io/topologyKeys"

// Reach is a set of endpoints relative to a node. It is one bit.
type Reach uint8

const (
	// Node has the endpoints of the node.
	Node Reach = 1 << iota
	// Pool has the endpoints of the nodes of its pool.
	Pool
	// Zone has the endpoints of its zone.
	Zone
	// All has all endpoints.
	All
)

// reaches are the valid keys. kubernetes.io/zone means the pool, as in OpenYurt.
var reaches = map[string]Reach{
	"kubernetes.io/hostname":      Node,
	"openyurt.io/nodepool":        Pool,
	"kubernetes.io/zone":          Pool,
	"topology.kubernetes.io/zone": Zone,
	"*":                           All,
}

// maxAnnotation is the most bytes of the annotation.
const maxAnnotation = 1024

// ParseTopology parses the value of the annotation. A value without keys means no topology.
func ParseTopology(value string) ([]Reach, error) {
	if len(value) > maxAnnotation {
		return nil, fmt.Errorf("more than %d bytes", maxAnnotation)
	}
	var keys []Reach
	for i, text := range strings.Split(value, ",") {
		text = strings.TrimSpace(text)
		if text == "" && i == 0 && !strings.Contains(value, ",") {
			return nil, nil
		}
		key, known := reaches[text]
		if !known {
			return nil, fmt.Errorf("unknown key %q; use kubernetes.io/hostname, openyurt.io/nodepool, topology.kubernetes.io/zone or *", text)
		}
		if slices.Contains(keys, All) {
			return nil, errors.New("* must be the last key, because later keys have no effect")
		}
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// Place describes the node.
type Place struct {
	Node string
	// Known is true once the Node has been read.
	Known bool
	// Zone and Pool are "" if the node has none.
	Zone, Pool string
	// Members are the nodes of the pool; nil if they are not known.
	Members map[string]bool
}

// Endpoint has the fields of an endpoint that are used.
type Endpoint struct {
	// Node is "" if the endpoint is not on a node.
	Node string
	// Zone is "" if the endpoint is not in a zone. ZoneUnknown is true for a kind of object without zones.
	Zone        string
	ZoneUnknown bool
	Ready       bool
	// Pod is the UID of the pod; "" if the endpoint is not a pod.
	Pod       string
	Addresses []string
}

// knows reports whether the endpoints of a reach can be determined. A reach that cannot be determined excludes
// nothing.
func (p *Place) knows(r Reach) bool {
	switch r {
	case Node:
		return true
	case Pool:
		return p.Known && (p.Pool == "" || p.Members != nil)
	case Zone:
		return p.Known
	default:
		return false
	}
}

// has reports whether an endpoint is in a reach. A node without a pool (or zone) is alone in its pool (or zone).
func (p *Place) has(r Reach, e *Endpoint) bool {
	switch {
	case !p.knows(r), r == Zone && e.ZoneUnknown:
		return true
	case e.Node != "" && e.Node == p.Node:
		return true
	case r == Pool:
		return p.Pool != "" && p.Members[e.Node]
	case r == Zone:
		return p.Zone != "" && e.Zone == p.Zone
	default:
		return false
	}
}

// presence is the set of reaches in which a Service has endpoints, as bits of Reach.
type presence struct{ ready, any Reach }

// add adds an endpoint.
func (s *presence) add(p *Place, e *Endpoint) {
	for r := Node; r <= All; r <<= 1 {
		if p.has(r, e) {
			s.any |= r
			if e.Ready {
				s.ready |= r
			}
		}
	}
}

// choose returns the reach of a Service: the first of its keys with a ready endpoint, otherwise the first with
// any endpoint, otherwise the first.
func choose(keys []Reach, s presence) Reach {
	for _, among := range []Reach{s.ready, s.any} {
		for _, key := range keys {
			if among&key != 0 {
				return key
			}
		}
	}
	return keys[0]
}
