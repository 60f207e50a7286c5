use super::{
    error::{At, ConvertError},
    field::nested,
};
use crate::{event::ChainEvent, wire::event::v1};

impl From<ChainEvent> for v1::ChainEvent {
    fn from(event: ChainEvent) -> Self {
        Self { block: Some(event.block.into()) }
    }
}

impl TryFrom<v1::ChainEvent> for ChainEvent {
    type Error = ConvertError;

    fn try_from(wire: v1::ChainEvent) -> Result<Self, ConvertError> {
        Ok(Self { block: nested(wire.block).at("chain_event.block")? })
    }
}
