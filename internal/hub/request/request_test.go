package request

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	apiserver "k8s.io/apiserver/pkg/endpoints/request"
)

func get(target string, header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func TestRequestsAreClassifiedByKind(t *testing.T) {
	upgrade := get("/api/v1/namespaces/a/pods/b/exec?command=ls")
	upgrade.Header.Set("Upgrade", "websocket")
	for name, tc := range map[string]struct {
		request *http.Request
		want    Kind
	}{
		"an object":                {get("/api/v1/nodes/a"), Get},
		"its status":               {get("/apis/apps/v1/namespaces/a/deployments/b/status"), Get},
		"discovery":                {get("/apis/apps/v1"), Get},
		"the version":              {get("/version"), Get},
		"a collection":             {get("/api/v1/pods?fieldSelector=spec.nodeName%3Da"), List},
		"a chunk":                  {get("/api/v1/pods?limit=500"), List},
		"a watch":                  {get("/api/v1/pods?watch=true"), Watch},
		"a watch, written so":      {get("/api/v1/pods?watch=1"), Watch},
		"a watch of an object":     {get("/api/v1/watch/nodes/a"), Watch},
		"an object with watch":     {get("/api/v1/nodes/a?watch=1"), Get}, // as for the API server
		"a watch without a value":  {get("/api/v1/pods?watch"), Watch},
		"a watch, written oddly":   {get("/api/v1/pods?watch=yes"), Watch},
		"a watch in its old form":  {get("/api/v1/watch/pods"), Watch},
		"no watch":                 {get("/api/v1/pods?watch=false"), List},
		"a log":                    {get("/api/v1/namespaces/a/pods/b/log?follow=true"), Stream},
		"a proxy":                  {get("/api/v1/namespaces/a/services/b/proxy/c"), Stream},
		"an upgrade":               {upgrade, Stream},
		"a creation":               {httptest.NewRequest(http.MethodPost, "/api/v1/nodes", strings.NewReader("{}")), Write},
		"a deletion":               {httptest.NewRequest(http.MethodDelete, "/api/v1/nodes/a", nil), Write},
		"a watch of no collection": {get("/version?watch=true"), Get},
	} {
		if got := Of(tc.request); got.Kind != tc.want {
			t.Errorf("%s is %s, want %s", name, got.Kind, tc.want)
		}
	}
}

// TestPathsAreParsedAsByTheAPIServer: compared with the API server's own RequestInfoFactory.
func TestPathsAreParsedAsByTheAPIServer(t *testing.T) {
	judge := &apiserver.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	for _, path := range []string{
		"/", "/version", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/openapi/v3/api/v1",
		"/api/v1/pods", "/api/v1/namespaces", "/api/v1/namespaces/a", "/api/v1/namespaces/a/status", "/api/v1/namespaces/a/finalize",
		"/api/v1/namespaces/a/pods", "/api/v1/namespaces/a/pods/b", "/api/v1/namespaces/a/pods/b/status", "/api/v1/namespaces/a/pods/b/log",
		"/api/v1/nodes/a", "/api/v1/nodes/a/status", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a",
		"/apis/apps/v1/deployments", "/apis/apps/v1/namespaces/a/deployments/b/scale", "/api/v1/watch/pods", "/api/v1/watch/namespaces/a/pods/b",
		"/api/v1/pods/", "/apis/discovery.k8s.io/v1/endpointslices",
	} {
		r := get(path)
		info, err := judge.NewRequestInfo(r)
		if err != nil {
			t.Fatal(err)
		}
		got := Of(r)
		if !info.IsResourceRequest {
			info = &apiserver.RequestInfo{}
		}
		if got.Group != info.APIGroup || got.Version != info.APIVersion || got.Resource != info.Resource || got.Namespace != info.Namespace || got.Name != info.Name || got.Subresource != info.Subresource {
			t.Errorf("%s is %+v, want %+v", path, got, info)
		}
	}
}

// TestRequestsForTheSameDataShareAScope: the selection and the encoding are part of the scope. The position and
// the number of items are not.
func TestRequestsForTheSameDataShareAScope(t *testing.T) {
	base := get("/api/v1/pods?fieldSelector=spec.nodeName%3Da&labelSelector=b", "Accept", "application/json")
	for name, tc := range map[string]struct {
		request *http.Request
		same    bool
	}{
		"the parameters in another order": {get("/api/v1/pods?labelSelector=b&fieldSelector=spec.nodeName%3Da", "Accept", "application/json"), true},
		"its watch":                       {get("/api/v1/pods?labelSelector=b&fieldSelector=spec.nodeName%3Da&watch=true&resourceVersion=5&timeoutSeconds=9&allowWatchBookmarks=true", "Accept", "application/json"), true},
		"its watch in the old form":       {get("/api/v1/watch/pods?labelSelector=b&fieldSelector=spec.nodeName%3Da", "Accept", "application/json"), true},
		"its streamed list":               {get("/api/v1/pods?labelSelector=b&fieldSelector=spec.nodeName%3Da&watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "Accept", "application/json"), true},
		"a chunk":                         {get("/api/v1/pods?labelSelector=b&fieldSelector=spec.nodeName%3Da&limit=500&continue=x", "Accept", "application/json"), true},
		"the form with a space":           {get("/api/v1/pods?labelSelector=b&fieldSelector=spec.nodeName%3Da", "Accept", " Application/JSON"), true},
		"another selector of fields":      {get("/api/v1/pods?labelSelector=b&fieldSelector=spec.nodeName%3Dc", "Accept", "application/json"), false},
		"another selector of labels":      {get("/api/v1/pods?labelSelector=c&fieldSelector=spec.nodeName%3Da", "Accept", "application/json"), false},
		"no selector":                     {get("/api/v1/pods", "Accept", "application/json"), false},
		"another namespace":               {get("/api/v1/namespaces/x/pods?labelSelector=b&fieldSelector=spec.nodeName%3Da", "Accept", "application/json"), false},
		"another representation":          {get("/api/v1/pods?labelSelector=b&fieldSelector=spec.nodeName%3Da", "Accept", "application/vnd.kubernetes.protobuf"), false},
		"a parameter that is not known":   {get("/api/v1/pods?labelSelector=b&fieldSelector=spec.nodeName%3Da&pretty=1", "Accept", "application/json"), false},
	} {
		if got := Of(tc.request).Scope == Of(base).Scope; got != tc.same {
			t.Errorf("%s: the scopes are equal: %t, want %t", name, got, tc.same)
		}
	}
	list, watch := "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	if Of(get("/api/v1/pods", "Accept", list)).Scope != Of(get("/api/v1/pods?watch=1", "Accept", watch)).Scope {
		t.Error("the list and the watch of metadata have two scopes")
	}
	for _, path := range []string{"/version", "/api", "/apis", "/apis/apps/v1", "/openapi/v3/api/v1"} {
		if Of(get(path)).Scope == "" {
			t.Errorf("%s has no scope", path)
		}
	}
	if Of(get("/api/v1/nodes/a")).Scope == Of(get("/api/v1/watch/nodes/a")).Scope {
		t.Error("an object and the watch of it have the same scope")
	}
	for name, r := range map[string]*http.Request{
		"the health": get("/healthz"), "metrics": get("/metrics"), "readiness": get("/readyz/etcd"),
		"a write": httptest.NewRequest(http.MethodPut, "/api/v1/nodes/a", nil), "a log": get("/api/v1/namespaces/a/pods/b/log"),
	} {
		if scope := Of(r).Scope; scope != "" {
			t.Errorf("%s has the scope %q", name, scope)
		}
	}
}

func TestPositionIsReadFromTheQuery(t *testing.T) {
	for text, want := range map[string]Position{
		"":                                       {},
		"limit=0":                                {},
		"limit=500&resourceVersion=7":            {Limit: true, ResourceVersion: "7"},
		"limit=500&continue=x":                   {Limit: true, Continue: "x"},
		"resourceVersionMatch=Exact":             {Exact: true},
		"sendInitialEvents=false":                {},
		"sendInitialEvents=true":                 {InitialEvents: true},
		"allowWatchBookmarks=1&timeoutSeconds=5": {Bookmarks: true},
	} {
		query, err := url.ParseQuery(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := PositionOf(query); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}
