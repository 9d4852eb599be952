package record

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/request"
)

// QuestionPrefix begins the second line of the keys of POST requests that change nothing. In the keys of reads this
// line is a path.
const QuestionPrefix = "POST "

// KeyOf returns the key of the scope of a request of a caller; "" if its response must not be cached.
func KeyOf(caller identity.Caller, what *request.Request) string {
	if what.Scope == "" {
		return ""
	}
	return caller.Name + "\n" + what.Scope
}

// IsOfNode reports whether a key is the key of a scope of the node.
func IsOfNode(key string) bool { return strings.HasPrefix(key, identity.OfNode().Name+"\n") }

// PathOf returns the path in a key.
func PathOf(key string) string { return append(strings.SplitN(key, "\n", 3), "")[1] }

// ReadBy returns the request of a scope, and the name of the only object that it reads; "" if it reads a collection
// or a document.
func ReadBy(key string) (what request.Request, name string) {
	parts := append(strings.SplitN(key, "\n", 4), "", "", "")
	path, query := parts[1], parts[2]
	if question, is := strings.CutPrefix(path, QuestionPrefix); is {
		path, query, _ = strings.Cut(question, "?")
	}
	what = request.Of(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path, RawQuery: query}})
	if what.Name != "" {
		return what, what.Name
	}
	values, _ := url.ParseQuery(query) // always valid, because Encode created it
	if selected, is := strings.CutPrefix(values.Get("fieldSelector"), "metadata.name="); is && !strings.Contains(selected, ",") {
		name = selected
	}
	return what, name
}

// PodsOfNode returns the key prefix of the lists of all pods of a node.
func PodsOfNode(nodeName string) string {
	selector := url.Values{"fieldSelector": {"spec.nodeName=" + nodeName}}
	return identity.OfNode().Name + "\n/api/v1/pods\n" + selector.Encode() + "\n"
}
