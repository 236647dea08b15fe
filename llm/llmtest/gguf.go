package llmtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// TinyGGUF returns a language model of 50,000 random weights as a GGUF file,
// version 3: Llama's architecture with one block, a vocabulary of bytes and
// letters. It says nonsense, at the speed of a real server.
//
// The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
func TinyGGUF(seed uint64) []byte {
	const (
		width, heads, hidden, context = 64, 2, 128, 4096
		normal, unknownToken, control = int32(1), int32(2), int32(3)
		byteToken                     = int32(6)
	)
	var tokens []string
	var types []int32
	token := func(text string, kind int32) {
		tokens, types = append(tokens, text), append(types, kind)
	}
	token("<unk>", unknownToken)
	token("<s>", control)
	token("</s>", control)
	for b := range 256 {
		token(fmt.Sprintf("<0x%02X>", b), byteToken)
	}
	token("\u2581", normal) // a space
	for c := 'a'; c <= 'z'; c++ {
		token(string(c), normal)
	}

	g := &gguf{random: rand.New(rand.NewPCG(seed, 0))}
	g.string("general.architecture", "llama")
	g.string("general.name", "tiny")
	g.uint32("llama.context_length", context)
	g.uint32("llama.embedding_length", width)
	g.uint32("llama.block_count", 1)
	g.uint32("llama.feed_forward_length", hidden)
	g.uint32("llama.attention.head_count", heads)
	g.uint32("llama.attention.head_count_kv", heads)
	g.uint32("llama.rope.dimension_count", width/heads)
	g.uint32("llama.vocab_size", uint32(len(tokens)))
	g.float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
	g.string("tokenizer.ggml.model", "llama")
	g.strings("tokenizer.ggml.tokens", tokens)
	g.float32s("tokenizer.ggml.scores", make([]float32, len(tokens)))
	g.int32s("tokenizer.ggml.token_type", types)
	g.uint32("tokenizer.ggml.unknown_token_id", 0)
	g.uint32("tokenizer.ggml.bos_token_id", 1)
	g.uint32("tokenizer.ggml.eos_token_id", 2)

	g.tensor("token_embd.weight", width, len(tokens))
	for _, name := range []string{"attn_q", "attn_k", "attn_v", "attn_output"} {
		g.tensor("blk.0."+name+".weight", width, width)
	}
	g.tensor("blk.0.ffn_gate.weight", width, hidden)
	g.tensor("blk.0.ffn_up.weight", width, hidden)
	g.tensor("blk.0.ffn_down.weight", hidden, width)
	for _, name := range []string{"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"} {
		g.tensor(name, width)
	}
	g.tensor("output.weight", width, len(tokens))
	return g.file()
}

// The numbers of the types of values and of tensors' elements.
const (
	ggufUint32, ggufInt32, ggufFloat32, ggufString, ggufArray = uint32(4), uint32(5), uint32(6), uint32(8), uint32(9)
	ggmlF32                                                   = uint32(0)
	ggufAlignment                                             = 32
)

type gguf struct {
	random                *rand.Rand
	values, infos, data   bytes.Buffer
	valueCount, infoCount uint64
}

func put(b *bytes.Buffer, values ...any) {
	for _, v := range values {
		if s, ok := v.(string); ok {
			put(b, uint64(len(s)))
			b.WriteString(s)
			continue
		}
		if err := binary.Write(b, binary.LittleEndian, v); err != nil {
			panic(err) // a value of ours of no fixed size
		}
	}
}

func (g *gguf) value(v ...any) {
	g.valueCount++
	put(&g.values, v...)
}

func (g *gguf) string(key, v string)          { g.value(key, ggufString, v) }
func (g *gguf) uint32(key string, v uint32)   { g.value(key, ggufUint32, v) }
func (g *gguf) float32(key string, v float32) { g.value(key, ggufFloat32, v) }
func (g *gguf) int32s(key string, v []int32)  { g.value(key, ggufArray, ggufInt32, uint64(len(v)), v) }
func (g *gguf) float32s(key string, v []float32) {
	g.value(key, ggufArray, ggufFloat32, uint64(len(v)), v)
}

func (g *gguf) strings(key string, v []string) {
	g.value(key, ggufArray, ggufString, uint64(len(v)))
	for _, s := range v {
		put(&g.values, s)
	}
}

// tensor adds one of random numbers; of one dimension it is a norm's, near 1.
func (g *gguf) tensor(name string, dims ...int) {
	g.infoCount++
	put(&g.infos, name, uint32(len(dims)))
	n := 1
	for _, d := range dims {
		n *= d
		put(&g.infos, uint64(d))
	}
	put(&g.infos, ggmlF32, uint64(g.data.Len()))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(g.random.NormFloat64() * 0.1)
		if len(dims) == 1 {
			v[i]++
		}
	}
	put(&g.data, v)
	align(&g.data)
}

func align(b *bytes.Buffer) {
	for b.Len()%ggufAlignment != 0 {
		b.WriteByte(0)
	}
}

func (g *gguf) file() []byte {
	var out bytes.Buffer
	out.WriteString("GGUF")
	put(&out, uint32(3), g.infoCount, g.valueCount)
	out.Write(g.values.Bytes())
	out.Write(g.infos.Bytes())
	align(&out)
	out.Write(g.data.Bytes())
	return out.Bytes()
}
