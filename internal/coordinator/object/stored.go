package object

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// portInProtobuf is a Node that has only the port of its hub. In protobuf, a message followed by another one is
// both of them merged, with the later value of each field.
var portInProtobuf = func() []byte {
	suffix := binary.AppendUvarint([]byte{1 << 3}, governance.HubPort) // DaemonEndpoint.Port
	for _, number := range []byte{1, 6, 3} {                           // NodeDaemonEndpoints.kubeletEndpoint, NodeStatus.daemonEndpoints, Node.status
		suffix = append([]byte{number<<3 | 2, byte(len(suffix))}, suffix...)
	}
	return suffix
}()

// Stored returns what is stored of an uploaded object: the same bytes, but a Node has the port of its hub in the place of
// its kubelet's, because the kubelet does not know the API server of the pool.
func Stored(ref governance.Ref, body []byte) (stored []byte, err error) {
	switch {
	case ref.Resource != "nodes":
		return body, nil
	case bytes.HasPrefix(body, protobufPrefix):
		stored, err = withPortInProtobuf(body)
	default:
		stored, err = withField(body, fmt.Append(nil, governance.HubPort), "status", "daemonEndpoints", "kubeletEndpoint", "Port")
	}
	if err != nil {
		return nil, fmt.Errorf("changing the kubelet's port in %s: %w", ref, err)
	}
	return stored, nil
}

func withPortInProtobuf(body []byte) ([]byte, error) {
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(body[len(protobufPrefix):]); err != nil {
		return nil, err
	}
	envelope.Raw = append(envelope.Raw, portInProtobuf...)
	text, err := envelope.Marshal()
	if err != nil {
		return nil, err
	}
	return append(bytes.Clone(protobufPrefix), text...), nil
}

// withField returns a JSON object in which the field of a path has a value. All other fields stay, also those that this
// version does not know.
func withField(object, value []byte, path ...string) ([]byte, error) {
	if len(path) == 0 {
		return value, nil
	}
	fields := map[string]json.RawMessage{}
	if len(object) > 0 {
		if err := json.Unmarshal(object, &fields); err != nil {
			return nil, err
		}
	}
	if fields == nil { // null
		fields = map[string]json.RawMessage{}
	}
	inner, err := withField(fields[path[0]], value, path[1:]...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path[0], err)
	}
	fields[path[0]] = inner
	return json.Marshal(fields)
}
