// Command t8n-server is geth's `evm t8n` for many blocks: it stays alive, and takes the next block
// from its standard input.
//
// A request is one line: the JSON object that `evm t8n` reads from its standard input. Its answer is
// one line: the JSON object that `evm t8n` writes to its standard output, or an object whose `error`
// is the error of `evm t8n`. The flags are those of `evm t8n`, and hold for all requests.
//
// The block is executed by geth's t8ntool itself, with not one line changed. The name of this module
// stands below that of geth's cmd/evm, so that it may import that package, which is internal. It
// saves the start of a process for each block, which takes longer than a small block.
//
// geth's cmd/evm is under the GNU General Public License, so a built t8n-server is too.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ethereum/go-ethereum/cmd/evm/internal/t8ntool"
	"github.com/urfave/cli/v2"
)

func main() {
	if err := serve(os.Stdin, os.Stdout, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "t8n-server:", err)
		os.Exit(1)
	}
}

// serve answers requests until there are no more.
func serve(requests io.Reader, answers io.Writer, args []string) error {
	input := bufio.NewReaderSize(requests, 1<<20)
	for {
		request, err := input.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(request) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		answer, err := transition(request, args)
		if err != nil {
			if answer, err = json.Marshal(map[string]string{"error": err.Error()}); err != nil {
				return err
			}
		}
		if _, err := answers.Write(append(answer, '\n')); err != nil {
			return fmt.Errorf("write an answer: %w", err)
		}
	}
}

// transition runs t8ntool as `evm t8n` does, with the request as the standard input, and returns its
// standard output on one line.
func transition(request []byte, args []string) ([]byte, error) {
	input, feed, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer input.Close()
	drain, output, err := os.Pipe()
	if err != nil {
		feed.Close()
		return nil, err
	}
	defer drain.Close()
	go func() {
		// t8ntool says what is wrong with input that it leaves unread.
		_, _ = feed.Write(request)
		feed.Close()
	}()
	type read struct {
		text []byte
		err  error
	}
	drained := make(chan read, 1)
	go func() {
		text, err := io.ReadAll(drain)
		drained <- read{text, err}
	}()
	stdin, stdout := os.Stdin, os.Stdout
	os.Stdin, os.Stdout = input, output
	err = application().Run(args)
	os.Stdin, os.Stdout = stdin, stdout
	output.Close()
	written := <-drained
	if err = errors.Join(err, written.err); err != nil {
		return nil, err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, written.text); err != nil {
		return nil, fmt.Errorf("the output %q: %w", written.text, err)
	}
	return line.Bytes(), nil
}

// application returns the command `t8n` of geth's cmd/evm/main.go. Each request has its own, as flags
// keep values.
func application() *cli.App {
	return &cli.App{
		Name:   "t8n-server",
		Action: t8ntool.Transition,
		Flags: []cli.Flag{
			t8ntool.OutputBasedir,
			t8ntool.OutputAllocFlag,
			t8ntool.OutputResultFlag,
			t8ntool.OutputBodyFlag,
			t8ntool.InputAllocFlag,
			t8ntool.InputEnvFlag,
			t8ntool.InputTxsFlag,
			t8ntool.ForknameFlag,
			t8ntool.ChainIDFlag,
			t8ntool.RewardFlag,
		},
		// The default ends the process.
		ExitErrHandler: func(*cli.Context, error) {},
	}
}
