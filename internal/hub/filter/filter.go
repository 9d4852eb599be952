// Package filter defines the interfaces between the proxy and the filters of objects for clients. The cache
// holds unfiltered objects, so the result of a filter may change over time.
package filter

import (
	"context"
	"errors"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// Filter changes objects in responses to clients: the items of lists, and the objects of watches. The response
// to a get is never filtered, because the client may write the object back. A Filter is safe for concurrent
// use.
type Filter interface {
	// Session returns a filter for one list or one watch; nil if this collection is not filtered for the user.
	Session(user, group, version, resource string) Session
	// Changed returns a channel that is closed when the forms of objects may have changed.
	Changed() <-chan struct{}
	// Await waits until the filter has its inputs, for a limited time.
	Await(ctx context.Context)
}

// Session filters the objects of one list or one watch. The form of an object is its filtered content. It may
// depend on other objects: call Learn for all known objects before the first call of Form. A Session must be
// used by one goroutine at a time.
type Session interface {
	// Learn adds or updates an object, in JSON or protobuf. It returns whether the form of other objects may
	// have changed.
	Learn(format wire.Format, m *wire.Meta, object []byte) (others bool)
	// Forget removes an object. It returns whether the form of other objects may have changed.
	Forget(m *wire.Meta) (others bool)
	// Form returns the filtered object, in the same format. An object that cannot be decoded is returned
	// unchanged.
	Form(format wire.Format, m *wire.Meta, object []byte) []byte
}

// Pods receives the versions of the node's pods.
type Pods interface {
	// Written: the kubelet writes the status of a pod. It is called before the response of the cloud is known.
	Written(method, contentType string, body []byte)
	// Read: the kubelet reads a pod. Its next write contains only the differences from this version.
	Read(format wire.Format, uid string, pod []byte)
	// Seen: the cloud has returned a version of a pod. Requests are concurrent: it may be older than the
	// previous one.
	Seen(format wire.Format, m *wire.Meta, pod []byte)
	// Gone: the pod does not exist any more.
	Gone(uid string)
}

// Collection is a collection that a filter depends on. The hub reads it as the node, through the proxy like any
// other client, so that it is cached for offline use.
type Collection struct {
	// Path and Selector are the path and the query of the request. Selector may be "".
	Path, Selector string
	// List and Watch are the requested representations.
	List, Watch string
}

// Receiver receives the state of a collection, and its changes. Its methods are called one at a time.
type Receiver interface {
	// Replace: items are all objects.
	Replace(format wire.Format, items []wire.Item)
	// Put: an object is new, or has changed.
	Put(format wire.Format, m *wire.Meta, object []byte)
	// Delete: an object was deleted.
	Delete(m *wire.Meta)
	// Failed: reading the collection failed. The error wraps ErrRefused if the API server does not let the node
	// read the collection, or does not have it.
	Failed(err error)
}

// ErrRefused is the error of a collection that the API server does not return to the node.
var ErrRefused = errors.New("the API server refuses the request")

// Follower follows a collection until ctx is done: see proxy.Proxy.
type Follower func(ctx context.Context, c Collection, r Receiver)
