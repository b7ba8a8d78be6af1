//! Writes the demo's network as ONNX: SqueezeNet 1.1 (Iandola et al., 2016) in its full size, 1.2 million
//! weights, with random ones (He et al., 2015) from a fixed seed.
//!
//! usage: cargo run --release --example demo_network -- FILE.onnx

use std::path::PathBuf;

use anyhow::{Context, Result};
use prost::Message;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn main() -> Result<()> {
    let path: PathBuf = std::env::args_os().nth(1).context("usage: demo_network FILE.onnx")?.into();
    let bytes = squeezenet().encode_to_vec();
    std::fs::write(&path, &bytes).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}: SqueezeNet 1.1, {:.1} MB", path.display(), bytes.len() as f64 / 1e6);
    Ok(())
}

/// `image`, f32[1, 3, 224, 224], to `logits`, f32[1, 1000].
fn squeezenet() -> Model {
    let mut net = Builder {
        graph: Graph { name: "squeezenet1_1".into(), ..Graph::default() },
        rng: ChaCha8Rng::seed_from_u64(0),
    };
    net.graph.input.push(value("image", &[1, 3, 224, 224]));
    let mut x = net.conv("conv1", "image", [3, 64], 3, 2);
    x = net.pool("pool1", &x);
    x = net.fire("fire2", &x, 64, 16, 64);
    x = net.fire("fire3", &x, 128, 16, 64);
    x = net.pool("pool3", &x);
    x = net.fire("fire4", &x, 128, 32, 128);
    x = net.fire("fire5", &x, 256, 32, 128);
    x = net.pool("pool5", &x);
    x = net.fire("fire6", &x, 256, 48, 192);
    x = net.fire("fire7", &x, 384, 48, 192);
    x = net.fire("fire8", &x, 384, 64, 256);
    x = net.fire("fire9", &x, 512, 64, 256);
    x = net.conv("conv10", &x, [512, 1000], 1, 1);
    x = net.node("GlobalAveragePool", "pool10", &[&x], vec![]);
    net.node("Flatten", "logits", &[&x], vec![]);
    net.graph.output.push(value("logits", &[1, 1000]));
    let opset = OperatorSet { domain: String::new(), version: 17 };
    Model { ir_version: 8, producer_name: "tilescribe".into(), graph: Some(net.graph), opset_import: vec![opset] }
}

struct Builder {
    graph: Graph,
    rng: ChaCha8Rng,
}

impl Builder {
    /// Appends a node; its output has the node's name.
    fn node(&mut self, op: &str, name: &str, inputs: &[&str], attribute: Vec<Attribute>) -> String {
        let input = inputs.iter().map(|input| input.to_string()).collect();
        let (name, op_type) = (name.to_string(), op.to_string());
        self.graph.node.push(Node { input, output: vec![name.clone()], name: name.clone(), op_type, attribute });
        name
    }

    /// A convolution of `[input, output]` channels and its ReLU; kernels of 3 keep the image's size unless
    /// they stride.
    fn conv(&mut self, name: &str, x: &str, [input, output]: [i64; 2], kernel: i64, stride: i64) -> String {
        let fan_in = input * kernel * kernel;
        let weights =
            self.weights(&format!("{name}.weight"), &[output, input, kernel, kernel], (6.0 / fan_in as f32).sqrt());
        let bias = self.weights(&format!("{name}.bias"), &[output], 0.1);
        let pad = if stride == 1 { kernel / 2 } else { 0 };
        let attributes = vec![
            attribute("kernel_shape", &[kernel, kernel]),
            attribute("strides", &[stride, stride]),
            attribute("pads", &[pad, pad, pad, pad]),
        ];
        let y = self.node("Conv", name, &[x, &weights, &bias], attributes);
        self.node("Relu", &format!("{name}.relu"), &[&y], vec![])
    }

    /// Squeezes channels, then expands them by kernels of 1 and of 3, side by side.
    fn fire(&mut self, name: &str, x: &str, input: i64, squeeze: i64, expand: i64) -> String {
        let s = self.conv(&format!("{name}.squeeze"), x, [input, squeeze], 1, 1);
        let one = self.conv(&format!("{name}.expand1x1"), &s, [squeeze, expand], 1, 1);
        let three = self.conv(&format!("{name}.expand3x3"), &s, [squeeze, expand], 3, 1);
        let axis = Attribute { name: "axis".into(), i: 1, ints: vec![], r#type: Attribute::INT };
        self.node("Concat", name, &[&one, &three], vec![axis])
    }

    fn pool(&mut self, name: &str, x: &str) -> String {
        let ceil = Attribute { name: "ceil_mode".into(), i: 1, ints: vec![], r#type: Attribute::INT };
        self.node("MaxPool", name, &[x], vec![attribute("kernel_shape", &[3, 3]), attribute("strides", &[2, 2]), ceil])
    }

    /// A tensor of values between `-bound` and `bound`.
    fn weights(&mut self, name: &str, dims: &[i64], bound: f32) -> String {
        let elements: i64 = dims.iter().product();
        let raw_data = (0..elements).flat_map(|_| self.rng.random_range(-bound..bound).to_le_bytes()).collect();
        let name = name.to_string();
        self.graph.initializer.push(Tensor { dims: dims.to_vec(), data_type: FLOAT, name: name.clone(), raw_data });
        name
    }
}

fn attribute(name: &str, ints: &[i64]) -> Attribute {
    Attribute { name: name.into(), i: 0, ints: ints.to_vec(), r#type: Attribute::INTS }
}

fn value(name: &str, extents: &[i64]) -> ValueInfo {
    let dim = extents.iter().map(|extent| Dimension { dim_value: *extent }).collect();
    let tensor_type = Some(TensorType { elem_type: FLOAT, shape: Some(Shape { dim }) });
    ValueInfo { name: name.into(), r#type: Some(Type { tensor_type }) }
}

/// TensorProto.DataType.FLOAT
const FLOAT: i32 = 1;

// The messages of onnx.proto that the network needs, with their field numbers.

#[derive(Message)]
struct Model {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(string, tag = "2")]
    producer_name: String,
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<OperatorSet>,
}

#[derive(Message)]
struct OperatorSet {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Message)]
struct Graph {
    #[prost(message, repeated, tag = "1")]
    node: Vec<Node>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<ValueInfo>,
}

#[derive(Message)]
struct Node {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<Attribute>,
}

#[derive(Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "3")]
    i: i64,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    ints: Vec<i64>,
    #[prost(int32, tag = "20")]
    r#type: i32,
}

impl Attribute {
    const INT: i32 = 2;
    const INTS: i32 = 7;
}

#[derive(Message)]
struct Tensor {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(bytes = "vec", tag = "9")]
    raw_data: Vec<u8>,
}

#[derive(Message)]
struct ValueInfo {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    r#type: Option<Type>,
}

#[derive(Message)]
struct Type {
    #[prost(message, optional, tag = "1")]
    tensor_type: Option<TensorType>,
}

#[derive(Message)]
struct TensorType {
    #[prost(int32, tag = "1")]
    elem_type: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
}

#[derive(Message)]
struct Shape {
    #[prost(message, repeated, tag = "1")]
    dim: Vec<Dimension>,
}

#[derive(Message)]
struct Dimension {
    #[prost(int64, tag = "1")]
    dim_value: i64,
}
