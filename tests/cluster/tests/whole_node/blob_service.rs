//! A node that offers its blob-validator to other processes.

use std::{sync::Arc, time::Duration};
use tandem_blob_validator_client::{Client, ClientConfig};
use tandem_chain::Fork;
use tandem_cluster::Config;
use tandem_cluster_tests::{Builder, Forks, Node};
use tandem_proto::blob_validator::{
    BLOB_BYTES, BlobApi, Bundle, Form, Reason, Refusal, Rule, Verdict,
};
use tokio::runtime::Handle;

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_offers_its_blob_validator_where_it_is_asked_to() {
    let builder = Builder::new(Forks::at_genesis(Fork::Cancun));
    let mut config = Config::small();
    config.blob_validator.grpc_addr = Some("127.0.0.1:0".parse().unwrap());
    let node = Node::start_with(builder.genesis_json(), config).await;
    let endpoint = format!("http://{}", node.blob_address().unwrap());
    let client = Client::connect(&endpoint, ClientConfig::default(), &Handle::current()).unwrap();
    // A blob of zeros: commitment and proof are the point at infinity.
    let mut infinity = [0; 48];
    infinity[0] = 0xc0;
    let form = Form::BlobProofs;
    let hash = "0x010657f37554c781402a22917dee2f75def7ab966d7b770905398eba3c444014";
    let zeros = Bundle {
        form,
        blobs: vec![vec![0; BLOB_BYTES].into()],
        commitments: vec![infinity],
        proofs: vec![infinity],
        versioned_hashes: vec![hash.parse().unwrap()],
        rule: Rule { form, blobs_max: 6 },
    };
    let mut ones = zeros.clone();
    ones.blobs[0] = vec![1; BLOB_BYTES].into();
    assert_eq!(client.validate(Arc::new(zeros.clone()), TIMEOUT).await, Ok(Verdict::Valid));
    let refusal = Refusal { blob: Some(0), reason: Reason::ProofInvalid };
    let verdict = client.validate(Arc::new(ones), TIMEOUT).await;
    assert_eq!(verdict, Ok(Verdict::Invalid(refusal)));
    let kept = client.get_blobs(&zeros.versioned_hashes).await.unwrap();
    assert_eq!(kept[0].as_ref().unwrap().blob, zeros.blobs[0]);
    assert_eq!(client.status().await.unwrap().verified, 2);
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_default_it_offers_none() {
    let builder = Builder::new(Forks::at_genesis(Fork::Cancun));
    let node = Node::start(builder.genesis_json()).await;
    assert_eq!(node.blob_address(), None);
    node.stop_and_verify().await;
}
