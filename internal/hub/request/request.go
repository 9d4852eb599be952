// Package request parses the method, path, query and headers of a request to an API server. It must not know
// connections, identities or storage.
package request

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Kind is how the hub treats a request.
type Kind string

const (
	// Get reads one object, or another document, for example of discovery.
	Get Kind = "get"
	// List reads a collection, whole or in chunks.
	List Kind = "list"
	// Watch reads the changes of a collection.
	Watch Kind = "watch"
	// Write creates, changes or deletes objects.
	Write Kind = "write"
	// Stream is a bidirectional connection (exec, attach, port-forward), or a response without end (logs,
	// proxies). It is forwarded and never cached.
	Stream Kind = "stream"
)

// Positions returns the names of the parameters that are not part of a scope.
func Positions() []string { return slices.Clone(positions) }

// Request is a parsed request.
type Request struct {
	Kind Kind
	// Group, Version and Resource are "" if the path is not a resource.
	Group, Version, Resource string
	// Namespace and Name are "" if the request has none. A watch of one object with a field selector for its
	// name has no Name.
	Namespace, Name, Subresource string
	// Path is the path of what is read, without the prefix of the deprecated form of watches. It is "" if Scope
	// is.
	Path string
	// Scope is the scope of the request without its caller: path, selectors and representation. Lists and
	// watches of a collection have the same scope. It is "" for writes, streams and responses that are valid
	// only at the moment, such as the health of the API server.
	Scope string
}

// streams are the subresources with streams as responses.
var streams = []string{"attach", "exec", "log", "portforward", "proxy"}

// positions are the parameters of a read that choose its start, size or duration, and not which objects are
// read.
var positions = []string{
	"allowWatchBookmarks", "continue", "limit", "resourceVersion", "resourceVersionMatch", "sendInitialEvents",
	"timeout", "timeoutSeconds", "watch",
}

// Of parses a request.
func Of(r *http.Request) Request {
	var q Request
	path, watched := q.resource(r.URL.Path)
	query := r.URL.Query()
	switch {
	case r.Header.Get("Upgrade") != "", slices.Contains(streams, q.Subresource):
		q.Kind = Stream
		return q
	case r.Method != http.MethodGet:
		q.Kind = Write
		return q
	case q.Resource != "" && (watched || q.Name == "" && isTrue(query, "watch")):
		q.Kind = Watch
	case q.Resource != "" && q.Name == "":
		q.Kind = List
	default:
		q.Kind = Get
		if q.Resource == "" && !isDocument(path) {
			return q
		}
	}
	q.Path = path
	for _, name := range positions {
		query.Del(name)
	}
	q.Scope = strings.Join([]string{path, query.Encode(), accept(r.Header)}, "\n")
	if q.Kind == Get { // a get has another scope than a watch of the same path
		q.Scope += "\nget"
	}
	return q
}

// resource parses a path. It returns the path without the prefix of the deprecated form of watches, and whether
// it had that prefix.
func (q *Request) resource(path string) (rest string, watched bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var prefix []string
	switch {
	case parts[0] == "api" && len(parts) >= 3:
		prefix, parts = parts[:2], parts[2:]
		q.Version = prefix[1]
	case parts[0] == "apis" && len(parts) >= 4:
		prefix, parts = parts[:3], parts[3:]
		q.Group, q.Version = prefix[1], prefix[2]
	default:
		return path, false
	}
	if watched = parts[0] == "watch" && len(parts) > 1; watched {
		parts = parts[1:]
	}
	rest = "/" + strings.Join(slices.Concat(prefix, parts), "/")
	if parts[0] == "namespaces" && len(parts) > 1 {
		// The subresources of a namespace itself are only status and finalize.
		if len(parts) == 2 || len(parts) == 3 && (parts[2] == "status" || parts[2] == "finalize") {
			q.Namespace = parts[1]
		} else {
			q.Namespace, parts = parts[1], parts[2:]
		}
	}
	q.Resource = parts[0]
	if len(parts) > 1 {
		q.Name = parts[1]
	}
	if len(parts) > 2 {
		q.Subresource = parts[2]
	}
	return rest, watched
}

// isDocument reports whether a path that is not a resource can be cached: the version of the API server,
// discovery, OpenAPI, and the keys of ServiceAccount tokens.
func isDocument(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return slices.Contains([]string{"version", "api", "apis", "openapi", "openid", ".well-known"}, first)
}

// isTrue parses a boolean parameter like an API server: every value except 0 and false is true.
func isTrue(query url.Values, name string) bool {
	return query.Has(name) && query.Get(name) != "0" && !strings.EqualFold(query.Get(name), "false")
}

// accept returns the representations that the client accepts, as one line. The order is significant.
func accept(h http.Header) string {
	text := strings.ToLower(strings.ReplaceAll(strings.Join(h.Values("Accept"), ","), " ", ""))
	// Lists and watches use different names for the metadata representation.
	return strings.ReplaceAll(text, "as=partialobjectmetadatalist", "as=partialobjectmetadata")
}

// Position is the start, size and duration of the read of a collection.
type Position struct {
	ResourceVersion string
	// Limit is true if the response may be a chunk. Continue is the token of a chunk after the first.
	Limit    bool
	Continue string
	// Exact is true if the response must be of exactly ResourceVersion, not later.
	Exact bool
	// InitialEvents is true for a watch that begins with all objects.
	InitialEvents bool
	// Bookmarks is true for a watch whose client accepts bookmarks.
	Bookmarks bool
}

// PositionOf reads the position of a request.
func PositionOf(query url.Values) Position {
	limit := query.Get("limit")
	return Position{
		ResourceVersion: query.Get("resourceVersion"), Limit: limit != "" && limit != "0", Continue: query.Get("continue"),
		Exact:         query.Get("resourceVersionMatch") == "Exact",
		InitialEvents: isTrue(query, "sendInitialEvents"), Bookmarks: isTrue(query, "allowWatchBookmarks"),
	}
}
