package invariants

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Request is one line of the API server's audit log.
type Request struct {
	ID, User, Verb        string
	Resource, Subresource string
	Namespace, Name       string
	// Code is the HTTP status of the answer.
	Code int
	// Received and Answered are the API server's times.
	Received, Answered time.Time
}

func (r Request) object() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

// deletes reports whether the request asks to delete pods or their owners, whatever its
// result.
func (r Request) deletes() bool {
	if r.Subresource != "" || r.Verb != "delete" && r.Verb != "deletecollection" {
		return false
	}
	_, owner := kinds()[r.Resource]
	return owner && r.Resource != "nodes" && !strings.HasSuffix(r.Resource, "policies")
}

// evicted reports whether the request evicted a pod.
func (r Request) evicted() bool {
	return r.Resource == "pods" && r.Subresource == "eviction" && r.Verb == "create" && r.Code >= 200 && r.Code < 300
}

// ReadAudit returns the requests of a user, in the order of the log. An incomplete last
// line is left out: the API server may have been killed while it wrote it.
func ReadAudit(log io.Reader, user string) ([]Request, error) {
	var requests []Request
	lines := bufio.NewReaderSize(log, 1<<20)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return requests, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		if !bytes.Contains(line, []byte(user)) {
			continue
		}
		request, err := parseAudit(line)
		if err != nil {
			return nil, fmt.Errorf("reading line %d of the audit log: %w", number, err)
		}
		if request.User == user {
			requests = append(requests, request)
		}
	}
}

func parseAudit(line []byte) (Request, error) {
	var event struct {
		AuditID string `json:"auditID"`
		Verb    string `json:"verb"`
		User    struct {
			Username string `json:"username"`
		} `json:"user"`
		ObjectRef struct {
			Resource, Subresource, Namespace, Name string
		} `json:"objectRef"`
		ResponseStatus struct {
			Code int `json:"code"`
		} `json:"responseStatus"`
		Received time.Time `json:"requestReceivedTimestamp"`
		Stage    time.Time `json:"stageTimestamp"`
	}
	err := json.Unmarshal(line, &event)
	return Request{
		ID: event.AuditID, User: event.User.Username, Verb: event.Verb,
		Resource: event.ObjectRef.Resource, Subresource: event.ObjectRef.Subresource,
		Namespace: event.ObjectRef.Namespace, Name: event.ObjectRef.Name,
		Code: event.ResponseStatus.Code, Received: event.Received, Answered: event.Stage,
	}, err
}
