package extender

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// FuzzNodeNames holds the reading of names to what encoding/json says.
func FuzzNodeNames(f *testing.F) {
	for _, seed := range []string{
		`null`, `[]`, `[ ]`, `["a"]`, "[\"a\" ,\n\"b\"]", `[""]`, `["a,b", "c d"]`, `["a\"b"]`, `["\u0061"]`, `["é"]`,
		`[null,"a"]`, `[1]`, `["a",["b"]]`, `{"a":"b"}`, `"a"`, `["a"`, `["a","b"]]`, `[`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if !utf8.ValidString(raw) {
			return // encoding/json mends it; a name that is none is in no group either way
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
