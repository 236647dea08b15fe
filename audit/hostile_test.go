package audit

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"github.com/kernelwright/kernelwright/internal/parquetrows"
)

// page is one of a column, as a file is written that says what it likes.
type page struct {
	header format.PageHeader
	data   []byte
}

// dataPage has so many values, in plain encoding.
func dataPage(values int32, size int, data []byte) page {
	return page{format.PageHeader{
		Type: format.DataPage, UncompressedPageSize: int32(size), CompressedPageSize: int32(len(data)), //nolint:gosec // small
		DataPageHeader: thrift.New(format.DataPageHeader{NumValues: values, Encoding: format.Plain, DefinitionLevelEncoding: format.RLE, RepetitionLevelEncoding: format.RLE}),
	}, data}
}

// byHand writes a file with the columns reference and candidate, each of these
// pages, and so many rows.
func byHand(t testing.TB, rows int64, codec format.CompressionCodec, repetition format.FieldRepetitionType, pages ...page) []byte {
	t.Helper()
	var file bytes.Buffer
	marshal := func(v any) []byte {
		b, err := thrift.Marshal(new(thrift.CompactProtocol), v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	file.WriteString("PAR1")
	meta := format.FileMetaData{Version: 1, NumRows: rows, Schema: []format.SchemaElement{{Name: "root", NumChildren: thrift.New[int32](2)}}}
	group := format.RowGroup{NumRows: rows}
	for _, name := range []string{"reference", "candidate"} {
		at := int64(file.Len())
		offsets := format.ColumnMetaData{Type: format.ByteArray, Codec: codec, PathInSchema: []string{name}, Encoding: []format.Encoding{format.Plain}, NumValues: rows, DataPageOffset: at}
		for _, p := range pages {
			if p.header.Type == format.DictionaryPage {
				offsets.DictionaryPageOffset = int64(file.Len())
			} else {
				offsets.DataPageOffset = int64(file.Len())
			}
			file.Write(marshal(p.header))
			file.Write(p.data)
		}
		offsets.TotalCompressedSize = int64(file.Len()) - at
		offsets.TotalUncompressedSize = offsets.TotalCompressedSize
		group.Columns = append(group.Columns, format.ColumnChunk{FileOffset: at, MetaData: offsets})
		meta.Schema = append(meta.Schema, format.SchemaElement{Name: name, Type: thrift.New(format.ByteArray), RepetitionType: thrift.New(repetition)})
	}
	meta.RowGroups = []format.RowGroup{group}
	return withFooter(file.Bytes(), marshal(meta))
}

func withFooter(body, footer []byte) []byte {
	out := append(bytes.Clone(body), footer...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(footer))) //nolint:gosec // small
	return append(out, "PAR1"...)
}

// plainText is a value in plain encoding.
func plainText(text string) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...) //nolint:gosec // small
}

// run is a run of one value in the hybrid encoding of levels and of places in a
// dictionary.
func run(count int, value ...byte) []byte {
	return append(binary.AppendUvarint(nil, uint64(count)<<1), value...) //nolint:gosec // small
}

// zstdBomb stands for so many blocks of 128 KiB, in four bytes each.
func zstdBomb(blocks int) []byte {
	bomb := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58} // a frame with a window of 2 MiB
	for i := range blocks {
		head := uint32(128<<10)<<3 | 1<<1 // a run of one byte
		if i == blocks-1 {
			head |= 1
		}
		bomb = append(bomb, byte(head), byte(head>>8), byte(head>>16), 0)
	}
	return bomb
}

// Small files of Parquet that stand for any amount of data are told in a sentence,
// take bounded memory, and harm no neighbour.
func TestHostileParquet(t *testing.T) {
	const most = 128 << 20
	setFor(t, &parquetrows.Limits.Memory, most)
	setFor(t, &maxPairs, 10_000)
	const (
		memory   = "it takes more than 128 MiB of memory to read"
		manyRows = "one file may have 10000 pairs"
		damaged  = "" // it is told in the library's words
	)
	text := "class Model: # or a candidate\n" + strings.Repeat("x", 2000)
	levels := func(data []byte) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, uint32(len(data))), data...) //nolint:gosec // small
	}
	manyRuns := bytes.Repeat(run(1<<24, 0), 4096) // 64 Gi levels, where one is asked for
	nothing := levels(run(1<<20, 0))
	dictionary := page{format.PageHeader{
		Type: format.DictionaryPage, UncompressedPageSize: int32(len(text) + 4), CompressedPageSize: int32(len(text) + 4), //nolint:gosec // small
		DictionaryPageHeader: thrift.New(format.DictionaryPageHeader{NumValues: 1, Encoding: format.Plain}),
	}, plainText(text)}
	places := dataPage(1<<20, 6, append([]byte{1}, run(1<<20, 0)...))
	places.header.DataPageHeader.V.Encoding = format.RLEDictionary
	long := plainText(strings.Repeat("y", 5<<20))
	footer := func(list string) []byte { // of a schema with as many elements as a list can have
		return withFooter([]byte("PAR1"), []byte("\x15\x02\x19\xfc"+list))
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "set.parquet")
	for name, c := range map[string]struct {
		file    []byte
		written int64
		want    string
	}{
		"rows without values":             {byHand(t, 1<<20, format.Uncompressed, format.Optional, dataPage(1<<20, len(nothing), nothing)), 0, manyRows},
		"two thousand million values":     {byHand(t, 1<<31-1, format.Uncompressed, format.Required, dataPage(1<<31-1, 10, make([]byte, 10))), 0, damaged},
		"runs of levels":                  {byHand(t, 1, format.Uncompressed, format.Optional, dataPage(1, 10, levels(manyRuns))), 0, memory},
		"a bomb of zstd":                  {byHand(t, 1, format.Zstd, format.Required, dataPage(1, 100, zstdBomb(16<<10))), 0, memory},
		"LZ4 that is none":                {byHand(t, 1, format.Lz4Raw, format.Required, dataPage(1, 100, bytes.Repeat([]byte{0xff}, 1000))), 0, memory},
		"a snappy length":                 {byHand(t, 1, format.Snappy, format.Required, dataPage(1, 100, []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 1})), 0, damaged},
		"one text in a million rows":      {byHand(t, 1<<20, format.Uncompressed, format.Required, dictionary, places), 8 << 20, "what it holds is longer than 8 MiB"},
		"a text of five mebibytes":        {byHand(t, 1, format.Uncompressed, format.Required, dataPage(1, len(long), long)), 0, `it is larger than 4 MiB`},
		"a text in another encoding":      {byHand(t, 1, format.Uncompressed, format.Required, dataPage(1, 8, plainText("\xff\xfea\x00"))), 0, "its text is not UTF-8"},
		"more rows than there are values": {byHand(t, 1<<60, format.Uncompressed, format.Required, dataPage(1, len(text)+4, plainText(text))), 0, "a column has fewer values than the file has rows"},
		"a list without end":              {footer("\xff\xff\xff\xff\x07"), 0, damaged},
		"a footer longer than the file":   {append(binary.LittleEndian.AppendUint32([]byte("PAR1PAR1"), 1<<32-1), "PAR1"...), 0, damaged},
		"nothing":                         {nil, 0, damaged},
	} {
		t.Run(name, func(t *testing.T) {
			if c.written > 0 {
				setFor(t, &parquetrows.Limits.Written, c.written)
			}
			if err := os.WriteFile(path, c.file, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "set.jsonl"), []byte(`{"reference": "class Model:\n", "candidate": "class ModelNew:\n"}`), 0o644); err != nil {
				t.Fatal(err)
			}
			set, err := Find(dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer set.Close()
			last := set.Pairs[len(set.Pairs)-1].Candidate.Err()
			if last == nil || !strings.Contains(last.Error(), c.want) || strings.Contains(last.Error(), "goroutine") || len(last.Error()) > 300 {
				t.Errorf("%d pairs, the last: %v", len(set.Pairs), last)
			}
			if set.Layouts[asJSON] != 1 || len(set.Pairs) > maxPairs+2 {
				t.Errorf("%v", set.Layouts)
			}
		})
	}
}

func setFor[T any](t *testing.T, of *T, value T) {
	before := *of
	*of = value
	t.Cleanup(func() { *of = before })
}

// Whatever a file of Parquet has, each of its pairs has a text or a sentence.
func FuzzParquet(f *testing.F) {
	text := plainText("class Model: pass\n")
	f.Add(byHand(f, 1, format.Uncompressed, format.Required, dataPage(1, len(text), text)))
	f.Add(byHand(f, 3, format.Uncompressed, format.Optional, dataPage(3, 10, append([]byte{2, 0, 0, 0}, run(3, 0)...))))
	f.Add(byHand(f, 1, format.Zstd, format.Required, dataPage(1, 100, zstdBomb(2))))
	before := parquetrows.Limits.Memory
	parquetrows.Limits.Memory = 128 << 20
	f.Cleanup(func() { parquetrows.Limits.Memory = before })
	f.Fuzz(func(t *testing.T, file []byte) {
		path := filepath.Join(t.TempDir(), "set.parquet")
		if err := os.WriteFile(path, file, 0o644); err != nil {
			t.Fatal(err)
		}
		set, err := Find(path, nil)
		if err != nil {
			return // it is told
		}
		defer set.Close()
		for _, p := range set.Pairs {
			text, err := p.Candidate.ReadCandidate()
			if (text == "") == (err == nil) {
				t.Fatalf("%q, %v", text, err)
			}
		}
	})
}
