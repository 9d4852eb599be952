package extender

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzNodeNames compares the decoding of names with that of encoding/json.
func FuzzNodeNames(f *testing.F) {
	for _, seed := range []string{
		`null`, `[]`, `[ ]`, `["a"]`, "[\"a\" ,\n\"b\"]", `[""]`, `["a,b", "c d"]`, `["a\"b"]`, `["\u0061"]`, `["é"]`,
		`[null,"a"]`, `[1]`, `["a",["b"]]`, `{"a":"b"}`, `"a"`, `["a"`, `["a","b"]]`, `[`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if !utf8.ValidString(raw) {
			return // encoding/json replaces invalid bytes; no node has such a name, so the result is the same
		}
		var got nodeNames
		var want []string
		gotErr, wantErr := json.Unmarshal([]byte(raw), &got), json.Unmarshal([]byte(raw), &want)
		if (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("decoding %s: error %v, want %v", raw, gotErr, wantErr)
		}
		if diff := cmp.Diff(want, got.list); gotErr == nil && diff != "" {
			t.Errorf("decoding %s (-want +got):\n%s", raw, diff)
		}
	})
}

// FuzzDecodeFilter compares the decoding of requests with that of encoding/json.
func FuzzDecodeFilter(f *testing.F) {
	for _, seed := range []string{
		`{"Pod":{"metadata":{"name":"p"}},"Nodes":null,"NodeNames":["a","b"]}`, `{"Pod":null,"NodeNames":[]}`, `{"NodeNames":["a"]}`,
		`{"Pod":{"metadata":{"annotations":{"x":",\"NodeNames\":[\"a\"]}"}}},"NodeNames":["b"]}`, `{"Pod":{"a":1,"NodeNames":["a"]}}`,
		`{"Pod":{},"NodeNames":["a",]}`, `{"Pod":{},"NodeNames":["a" "b"]}`, `{"Pod":{},"NodeNames":["a\u0062"]}`, `{"Pod":{},"NodeNames":[1]}`,
		"{\"Pod\":{},\"NodeNames\":[\"a\"]}\n", `{"Pod":{},"NodeNames":["a"]}}`, `{"Pod":{},"NodeNames":["a"],"NodeNames":["b"]}`, `[,"NodeNames":[]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if !utf8.ValidString(raw) {
			return // encoding/json replaces invalid bytes; no node has such a name, so the result is the same
		}
		var want filterArgs
		wantErr := json.Unmarshal([]byte(raw), &want)
		answer := httptest.NewRecorder()
		got, ok := new(buffers).decodeFilter(answer, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(raw)))
		if strings.ContainsFunc(raw, func(r rune) bool { return r < ' ' && r != '\n' }) {
			return // invalid in a JSON string, but accepted in a name; no node has such a name
		}
		if ok != (wantErr == nil) {
			t.Fatalf("decoding %q: %t (%s), want error %v", raw, ok, answer.Body, wantErr)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(nodeNames{}), cmpopts.EquateEmpty()); ok && diff != "" {
			t.Errorf("decoding %q (-want +got):\n%s", raw, diff)
		}
	})
}
