package invariants

import (
	"strings"
	"testing"
	"time"
)

func TestReadAudit(t *testing.T) {
	log := `{"auditID":"1","verb":"create","user":{"username":"manager"},"objectRef":{"resource":"pods","subresource":"eviction","namespace":"ns","name":"pod"},"responseStatus":{"code":201},"requestReceivedTimestamp":"2001-09-09T01:46:40.000000Z","stageTimestamp":"2001-09-09T01:46:41.000000Z"}
{"auditID":"2","verb":"delete","user":{"username":"manager-of-others"},"objectRef":{"resource":"pods","namespace":"ns","name":"pod"},"responseStatus":{"code":200}}
{"auditID":"3","verb":"delete","user":{"username":"manager"},"objectRef":{"resource":"pods","namespace":"ns","name":"other"},"responseStatus":{"code":403}}
{"auditID":"4","verb":"delete","user":{"username":"manager"},"obj`
	requests, err := ReadAudit(strings.NewReader(log), "manager")
	if err != nil {
		t.Fatal(err)
	}
	if len(requests) != 2 || !requests[0].evicted() || requests[0].deletes() || requests[1].evicted() || !requests[1].deletes() {
		t.Fatalf("requests are %+v", requests)
	}
	if r := requests[0]; r.object().String() != "ns/pod" || !r.Received.Equal(time.Unix(1e9, 0)) || r.Answered.Sub(r.Received) != time.Second {
		t.Errorf("the eviction is %+v", r)
	}
	if _, err := ReadAudit(strings.NewReader("manager: no JSON\n"), "manager"); err == nil {
		t.Error("a line that is not JSON is ignored")
	}
}
