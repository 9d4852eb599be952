package link

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Info is what a network tells about itself: the address of the control plane, and the range
// of all addresses.
type Info struct {
	Server netip.Addr   `json:"server"`
	Range  netip.Prefix `json:"range"`
}

// Client speaks to the process of a network, at its Unix socket.
type Client struct{ Socket string }

// Info returns what the network tells about itself.
func (c Client) Info(ctx context.Context) (info Info, err error) {
	return info, c.call(ctx, http.MethodGet, "/", nil, &info)
}

// Add connects a node.
func (c Client) Add(ctx context.Context, node Node) error {
	return c.call(ctx, http.MethodPost, "/nodes", node, nil)
}

// Unplug closes the devices of a node that is about to lose its power: see [Network.Unplug].
func (c Client) Unplug(ctx context.Context, node string) error {
	return c.call(ctx, http.MethodDelete, "/nodes/"+node+"/devices", nil, nil)
}

// Remove forgets a node, whose processes have ended.
func (c Client) Remove(ctx context.Context, node string) error {
	return c.call(ctx, http.MethodDelete, "/nodes/"+node, nil, nil)
}

// Set changes what a leg of a node does with packets.
func (c Client) Set(ctx context.Context, node string, leg Leg, s State) error {
	return c.call(ctx, http.MethodPut, "/nodes/"+node+"/"+string(leg), s, nil)
}

func (c Client) call(ctx context.Context, method, path string, body, into any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encoding a request to the network: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://network"+path, bytes.NewReader(raw))
	if err != nil {
		return fmt.Errorf("asking the network: %w", err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", c.Socket)
	}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("asking the network: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("asking the network: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the network refuses: %s", strings.TrimSpace(string(answer)))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("decoding the network's answer: %w", err)
	}
	return nil
}
