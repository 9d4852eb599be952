// Command devcluster-pause is what a pod of a real node needs besides its containers, and the
// smallest container for tests: it waits until it is told to end.
//
//	devcluster-pause
//	devcluster-pause serve <host:port>     answers HTTP requests with the name of the host
//	devcluster-pause get <url>             prints the answer to an HTTP request, within 5 seconds
//	devcluster-pause echo                  prints its input
//
// Under the name tar it does what kubectl cp needs of that program.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case filepath.Base(os.Args[0]) == "tar":
		err = archive(args, os.Stdin, os.Stdout)
	case len(args) == 1 && args[0] == "echo":
		_, err = io.Copy(os.Stdout, os.Stdin)
	case len(args) == 2 && args[0] == "serve":
		err = serve(args[1])
	case len(args) == 2 && args[0] == "get":
		err = get(args[1])
	default:
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
		<-ended
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(address string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	fmt.Println("serving as", name)
	server := &http.Server{Addr: address, ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, name)
	})}
	return server.ListenAndServe()
}

func get(url string) error {
	client := &http.Client{Timeout: 5 * time.Second}
	response, err := client.Get(url) //nolint:noctx // the client has a timeout
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}
