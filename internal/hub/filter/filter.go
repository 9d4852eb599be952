// Package filter is what the proxy and the filters of objects on their way to clients know of each
// other. What the cache keeps is not filtered, so that a filter may change its mind.
package filter

import (
	"context"
	"errors"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// Filter changes objects on their way to clients: the items of lists, and the objects of watches. An
// object that is read alone is never filtered, because the client may write it back. It is safe for
// concurrent use.
type Filter interface {
	// Session returns what filters one list or one watch; nil if this collection is not filtered for
	// the user.
	Session(user, group, version, resource string) Session
	// Changed returns a channel that is closed when the forms of objects may be others than now.
	Changed() <-chan struct{}
	// Await waits until the filter has what it depends on, and not for long.
	Await(ctx context.Context)
}

// Session filters the objects of one list or one watch. The form of an object may depend on others:
// all that are known are learned before the first is asked for. Only one goroutine may use it at a time.
type Session interface {
	// Learn tells of an object, in either form. It returns whether others may have another form now.
	Learn(format wire.Format, m *wire.Meta, object []byte) (others bool)
	// Forget tells that an object is gone.
	Forget(m *wire.Meta) (others bool)
	// Form returns the object as the client gets it, in the form in which it is given. An object that
	// cannot be read is returned as it is.
	Form(format wire.Format, m *wire.Meta, object []byte) []byte
}

// Pods is told of the pods of the node.
type Pods interface {
	// Written: the kubelet writes the status of a pod, whatever the cloud answers.
	Written(method, contentType string, body []byte)
	// Read: the kubelet reads a pod, and writes only what differs from it.
	Read(format wire.Format, uid string, pod []byte)
	// Seen: this is a version of a pod in the cloud. Requests run side by side: it may be older than the last.
	Seen(format wire.Format, m *wire.Meta, pod []byte)
	// Gone: there is no such pod any more.
	Gone(uid string)
}

// Collection is a collection that a filter depends on. The hub reads it as the node, like any other
// client, so that it is kept for the time without the cloud.
type Collection struct {
	// Path and Selector are those of the request. Selector may be "".
	Path, Selector string
	// List and Watch are the representations that are asked for.
	List, Watch string
}

// Receiver gets the state of a collection, and its changes. Its methods are called one at a time.
type Receiver interface {
	// Replace: these are all objects.
	Replace(format wire.Format, items []wire.Item)
	// Put: an object is new, or has changed.
	Put(format wire.Format, m *wire.Meta, object []byte)
	// Delete: an object is gone.
	Delete(m *wire.Meta)
	// Failed: the collection cannot be read. It is ErrRefused, wrapped, if the API server does not let
	// the node read it, or does not have it.
	Failed(err error)
}

// ErrRefused is the error of a collection that the node is not given.
var ErrRefused = errors.New("the API server refuses it")

// Follower follows a collection until ctx is done: see proxy.Proxy.
type Follower func(ctx context.Context, c Collection, r Receiver)
